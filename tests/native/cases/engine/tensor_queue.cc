// The queue between callers and the holder of the progress token.
#include "engine/intake/tensor_queue.h"

#include "harness.h"

namespace hvdlite::engine::tensor_queue_test {
namespace {

Entry entry_of(const std::string& name) {
  Request request;
  request.set = {0, 1};
  request.kind = base::OpKind::kBarrier;
  request.name = name;
  request.seal();
  Entry entry;
  entry.request = std::make_shared<const Request>(std::move(request));
  entry.completion = std::make_shared<Completion>();
  return entry;
}

std::string refusal_of(TensorQueue& queue, const std::vector<std::string>& names) {
  std::vector<Entry> entries;
  for (const std::string& name : names) entries.push_back(entry_of(name));
  try {
    queue.push(entries);
  } catch (const base::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(takes_all_of_a_submission_or_none) {
  TensorQueue queue{base::TimeSource()};
  EXPECT(refusal_of(queue, {"a", "b"}).empty());
  EXPECT_HAS(refusal_of(queue, {"c", "a"}), "'a' in process set 0: an operation of this name is");
  EXPECT_HAS(refusal_of(queue, {"d", "d"}), "this submission has two operations of this name");
  std::vector<std::string> many;
  for (int i = 0; i < 200; ++i) many.push_back("many" + std::to_string(i));
  EXPECT(refusal_of(queue, many).empty());
  EXPECT(queue.take_all().size() == 202);
  EXPECT(refusal_of(queue, {"c", "d"}).empty());
}

TEST(takes_nothing_when_it_is_closed) {
  TensorQueue queue{base::TimeSource()};
  EXPECT(refusal_of(queue, {"a"}).empty());
  queue.close();
  EXPECT_HAS(refusal_of(queue, {"b"}), "this rank has shut down");
  EXPECT(queue.take_all().size() == 1);
}

}  // namespace hvdlite::engine::tensor_queue_test
