// How events become spans. The writer keeps an Open for each operation that has not ended. Each event of the operation ends the
// span of the stage before:
//
//    event of operation 7   stage in the Open      what is added to the text
//    kSubmitted             there is no Open yet   nothing; the Open begins
//    kAnnounced             kSubmitted             QUEUE
//    kAgreed                kAnnounced             NEGOTIATE_ALLREDUCE
//    kStarted               kAgreed                WAIT_FOR_OTHER_TENSOR_DATA
//    kDone                  kStarted               ALLREDUCE; the Open is deleted
//
// So a span is added when it ends, and the spans of a file are not sorted by their begin.
//
// How the file stays valid. flush() writes the text and the closing bracket, and `written_` is where the bracket begins. The
// next text begins there:
//
//    after a write      [ a, b ]
//    after the next     [ a, b, c, d ]
//
// Tracks (the `tid` of an event):
//
//    0                                     the rank itself: marks, and what header() adds
//    1 to kFirstTensorTrack - 2            one calling thread each
//    kFirstTensorTrack - 1                 all further calling threads
//    from kFirstTensorTrack on             one tensor each
//    kSharedTensorTrack                    all further tensors; this track has no name
//
// Memory is bounded: the number of tracks is limited, open_ has only operations that have not ended, and write() writes all
// text to the file.
#include "engine/observe/timeline_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "engine/model/text.h"

namespace hvdlite::engine {
namespace {

using base::Clock;
using Stage = FlightRecorder::Stage;

constexpr const char* kEnd = "\n]\n";
// At most this many tensors have a track of their own; all others share one track. So memory is bounded even if a program gives
// every operation a new name.
constexpr std::int32_t kMostTracks = 1 << 14;
// Callers' tracks come before those of tensors.
constexpr std::int32_t kFirstTensorTrack = 1000;
constexpr std::int32_t kSharedTensorTrack = kFirstTensorTrack + kMostTracks;

double microseconds_of(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

// A number of microseconds with three decimals, so the last digit counts nanoseconds.
std::string number(double value) { return base::to_text(value, 3); }

// The text as a JSON string, with its quotes.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escaped;
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", byte);
      result += escaped.data();
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// "ALLREDUCE"
std::string upper_case(std::string_view name) {
  std::string result(name);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

// The facts that docs/timeline.md promises for the last span of an operation.
std::string arguments_of(const Request& request) {
  return "\"dtype\":" + quoted(format_dtype(request.dtype, request.layout)) +
         ",\"shape\":" + quoted(format_shape(request.shape)) +
         ",\"bytes\":" + std::to_string(request.bytes()) +
         ",\"process_set\":" + std::to_string(request.set.id);
}

std::string caller_name(std::int32_t thread) { return "caller, thread " + std::to_string(thread); }

// The name of the span between two stages. Some stages may be missing: announcements in a ledger are not recorded
// (Effects::announced_at_port). A small operation that starts as soon as the ranks agree may have no kAgreed. If it also ends
// at that moment, it may have no kStarted either. If the payload of a message travels whole in its Offer, or stays on this
// rank, neither the send nor the receive has kStarted: the send goes from kAnnounced to kDone, and the receive from kAgreed to
// kDone. So such a message has no span SEND or RECV.
std::string span_name(Stage stage, Stage next, const Request& request) {
  const std::string operation = upper_case(base::name_of(request.kind));
  switch (stage) {
    case Stage::kSubmitted:
      if (next == Stage::kAnnounced) return "QUEUE";
      return next == Stage::kDone ? operation : "NEGOTIATE_" + operation;
    case Stage::kAnnounced:
      return "NEGOTIATE_" + operation;
    case Stage::kAgreed:
      return "WAIT_FOR_OTHER_TENSOR_DATA";
    case Stage::kStarted:
    case Stage::kDone:
    case Stage::kFailed:
      break;
  }
  return operation;
}

// The track of this key. New keys take the tracks from `first` on; when these tracks are used up, further keys share the track
// `last`.
template <typename Key>
std::int32_t track_in(std::map<Key, std::int32_t>& tracks, const Key& key, std::int32_t first,
                      std::int32_t last) {
  const auto found = tracks.find(key);
  if (found != tracks.end()) return found->second;
  const auto track = first + static_cast<std::int32_t>(tracks.size());
  if (track >= last) return last;
  tracks.emplace(key, track);
  return track;
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    "the timeline cannot be written to '" + path + "': " + std::strerror(error) +
                        "; give a file that this process may write, in a folder that exists and "
                        "has room");
}

}  // namespace

TimelineWriter::TimelineWriter(std::string path, std::size_t max_bytes, TimelineOwner owner,
                               base::TimeSource time)
    : path_(std::move(path)), max_bytes_(max_bytes), owner_(owner), time_(time) {
  open_file(path_);
  std::remove((path_ + ".old").c_str());  // an earlier trace may have left it
  header();
  if (const int error = flush()) refuse(path_, error);
}

TimelineWriter::~TimelineWriter() {
  if (file_ >= 0) close(file_);
}

void TimelineWriter::open_file(const std::string& path) {
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) refuse(path, errno);
  written_ = 0;
}

// Adds what `hvdlite timeline` needs to put the files of several ranks together. With the offset (clock_to_epoch_us), that
// command computes times of the wall clock from the times of the events.
void TimelineWriter::header() {
  const auto wall = std::chrono::duration<double, std::micro>(
      std::chrono::system_clock::now().time_since_epoch());
  const double offset = wall.count() - microseconds_of(time_.now());
  add("process_name", 'M', 0, "",
      "\"name\":\"rank " + std::to_string(owner_.rank) +
          "\",\"start_time_since_epoch_in_micros\":" +
          std::to_string(static_cast<std::int64_t>(wall.count())));
  add("process_sort_index", 'M', 0, "", "\"sort_index\":" + std::to_string(owner_.rank));
  // Ranks with the same boot_id share a clock, which counts from the start of their host.
  add("hvdlite", 'M', 0, "",
      "\"rank\":" + std::to_string(owner_.rank) + ",\"size\":" + std::to_string(owner_.size) +
          ",\"host\":" + quoted(host_name()) + ",\"process\":" + std::to_string(getpid()) +
          ",\"boot_id\":" + quoted(base::first_line_of("/proc/sys/kernel/random/boot_id")) +
          ",\"clock_to_epoch_us\":" + number(offset) + ",\"version\":\"" HVDLITE_VERSION "\"");
  named_.clear();
}

// Adds one event. `times` and `arguments` are fields of JSON; `times` begins with a comma unless it is empty. `name` needs no
// quoted(): each name consists of literals and the name of a kind of operation in capitals.
void TimelineWriter::add(const std::string& name, char phase, std::int32_t track,
                         const std::string& times, const std::string& arguments) {
  text_ += written_ == 0 && text_.empty() ? "[\n" : ",\n";
  text_ += "{\"name\":\"" + name + "\",\"ph\":\"" + phase +
           "\",\"pid\":" + std::to_string(owner_.rank) + ",\"tid\":" + std::to_string(track) +
           times + ",\"args\":{" + arguments + "}}";
}

// Writes the new text and the closing bracket. The next text overwrites the bracket. If a write fails, closes the file and
// returns the system's error number; otherwise 0.
int TimelineWriter::flush() {
  if (file_ < 0 || text_.empty()) return 0;
  const std::size_t size = text_.size();
  text_ += kEnd;
  std::size_t done = 0;
  while (done < text_.size()) {
    const ssize_t wrote = pwrite(file_, text_.data() + done, text_.size() - done,
                                 static_cast<off_t>(written_ + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = wrote < 0 ? errno : ENOSPC;
      // The write failed, for example because the disk is full. Cut the file back to the earlier content, which is valid.
      [[maybe_unused]] const int cut = ftruncate(file_, static_cast<off_t>(written_));
      [[maybe_unused]] const ssize_t end =
          pwrite(file_, kEnd, std::strlen(kEnd), static_cast<off_t>(written_));
      close(file_);
      file_ = -1;
      return error;
    }
    done += static_cast<std::size_t>(wrote);
  }
  written_ += size;
  text_.clear();
  return 0;
}

// The file becomes FILE.old, and a new file begins. At every moment there is a valid file at the path, if the file system can
// exchange two files.
void TimelineWriter::rotate() {
  close(file_);
  file_ = -1;
  const std::string next = path_ + ".new";
  const std::string old = path_ + ".old";
  try {
    open_file(next);
  } catch (const base::Error&) {
    return;  // the folder is gone, or not writable any more: the trace ends
  }
  header();
  if (flush() != 0) {  // the disk is full: the trace ends, and the last file stays
    std::remove(next.c_str());
    return;
  }
  if (renameat2(AT_FDCWD, next.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    std::rename(next.c_str(), old.c_str());
  } else {  // the file system cannot exchange two files
    std::rename(path_.c_str(), old.c_str());
    std::rename(next.c_str(), path_.c_str());
  }
}

void TimelineWriter::write(const std::vector<TimelineEvent>& events, std::uint64_t dropped) {
  if (file_ < 0) return;
  for (const TimelineEvent& event : events) {
    follow(event);
    // The size is checked after each event, because the events of one call may fill several files.
    if (written_ + text_.size() > max_bytes_ / 2) {
      if (flush() != 0) return;
      rotate();
      if (file_ < 0) return;
    }
  }
  if (dropped > 0) {
    dropped_ += dropped;
    // The event that ends an operation of open_ may be among the dropped events. Such an operation would stay in open_ for
    // ever, so all operations are removed.
    open_.clear();
    mark("DROPPED", time_.now(), "\"events\":" + std::to_string(dropped_));
  }
  flush();
}

// Names the track, once in each file: a new file has only the names of tracks with spans in it.
void TimelineWriter::name_track(std::int32_t track, const std::string& name) {
  if (track == kSharedTensorTrack || !named_.insert(track).second) return;
  add("thread_name", 'M', track, "", "\"name\":" + quoted(name));
}

void TimelineWriter::follow(const TimelineEvent& event) {
  switch (event.kind) {
    case TimelineEvent::Kind::kSubmitted: {
      const Request& request = *event.request;
      const std::int32_t track =
          track_in(tracks_, request.name, kFirstTensorTrack, kSharedTensorTrack);
      open_[event.number] = {event.request, Stage::kSubmitted, event.time, track, 0};
      return;
    }
    case TimelineEvent::Kind::kReached: {
      const auto found = open_.find(event.number);
      if (found == open_.end()) return;  // the submission was not traced, or events were dropped
      reach(found->second, event);
      if (event.stage >= Stage::kDone) open_.erase(found);
      return;
    }
    case TimelineEvent::Kind::kCycle:
      mark("CYCLE_START", event.time, "");
      return;
    case TimelineEvent::Kind::kWait: {
      const std::int32_t track = track_in(callers_, event.thread, 1, kFirstTensorTrack - 1);
      name_track(track, caller_name(event.thread));
      span("WAIT", track, event.since, event.time, "\"operation\":" + std::to_string(event.number));
      return;
    }
  }
}

// Adds the span that ends with this event. Only the last span of an operation has the facts about the tensor, so that the file
// has them once. The spans of a failed operation have no such facts.
void TimelineWriter::reach(Open& open, const TimelineEvent& event) {
  name_track(open.track, open.request->name);
  std::string arguments = "\"operation\":" + std::to_string(event.number);
  if (event.stage == Stage::kDone) arguments += "," + arguments_of(*open.request);
  if (open.fused != 0) arguments += ",\"fused_op\":" + std::to_string(open.fused);
  if (event.stage == Stage::kFailed) arguments += ",\"failed\":true";
  if (open.stage == Stage::kSubmitted && event.stage == Stage::kDone) {
    // The operation ended when the ranks agreed, because they had exchanged the data before (collectives/prepared.h), or
    // because it has no data (a barrier). So its negotiation and the operation itself get one span each, and both spans cover
    // the whole time.
    span(span_name(Stage::kAnnounced, Stage::kAgreed, *open.request), open.track, open.since,
         event.time, "\"operation\":" + std::to_string(event.number));
  }
  span(span_name(open.stage, event.stage, *open.request), open.track, open.since, event.time,
       arguments);
  open.stage = event.stage;
  open.since = event.time;
  if (event.fused != 0) open.fused = event.fused;
}

void TimelineWriter::span(const std::string& name, std::int32_t track, Clock::time_point from,
                          Clock::time_point to, const std::string& arguments) {
  const double begin = microseconds_of(from);
  add(name, 'X', track,
      ",\"ts\":" + number(begin) + ",\"dur\":" + number(microseconds_of(to) - begin), arguments);
}

void TimelineWriter::mark(const std::string& name, Clock::time_point time,
                          const std::string& arguments) {
  add(name, 'i', 0, ",\"s\":\"p\",\"ts\":" + number(microseconds_of(time)), arguments);
}

}  // namespace hvdlite::engine
