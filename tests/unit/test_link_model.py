"""The model of slow links: what it predicts, what it chooses, and how it finds a link's figures by allreduces."""

import pytest

from hvdlite.tuning import link_model
from hvdlite.tuning.link_model import (
    ACCUMULATE,
    ALL_METHODS,
    AUTO_METHODS,
    BF16,
    INT4,
    INT8,
    NONE,
    POWERSGD,
    Gradients,
    HostLink,
    bucket_sizes,
    choose,
    find_link,
    step_seconds,
)

SLOW = HostLink(2, 0.02, 12.5e6, coding=2e-9, factoring=2e-9)  # 100 Mbit/s
FAST = HostLink(2, 20e-6, 12.5e9, coding=2e-9, factoring=2e-9)  # 100 Gbit/s
RESNET = Gradients(bucket_sizes(11_200_000, 1 << 20, 25 << 20))


def chosen(link, gradients=RESNET, compute=0.0, methods=AUTO_METHODS):
    return choose(methods, lambda method: step_seconds(link, method, gradients, compute))


def test_without_computation_a_step_takes_the_time_of_its_bytes_and_the_latency():
    assert step_seconds(SLOW, NONE, RESNET, 0.0) == pytest.approx(11.2e6 * 4 / 12.5e6 + 0.02)
    four = HostLink(4, 0.02, 12.5e6)
    assert step_seconds(four, NONE, RESNET, 0.0) == pytest.approx(1.5 * 11.2e6 * 4 / 12.5e6 + 0.02)
    assert step_seconds(SLOW, BF16, RESNET, 0.0) == pytest.approx(11.2e6 * (2 / 12.5e6 + 2e-9) + 0.02)
    halves = Gradients(RESNET.buckets, itemsize=2)
    assert step_seconds(SLOW, NONE, halves, 0.0) == pytest.approx(11.2e6 * 2 / 12.5e6 + 0.02)
    assert step_seconds(SLOW, POWERSGD, RESNET, 0.0) < step_seconds(SLOW, INT4, RESNET, 0.0)


def test_sums_of_16_bit_elements_are_sent_as_float32():
    """Between two ranks no sum is sent before it is complete."""
    for hosts, ranks, sent in ((2, 2, 2.0), (2, 4, 3.0), (4, 8, 3.0), (3, 3, 2.5), (8, 8, 20 / 7)):
        link = HostLink(hosts, 0.0, 1e6, ranks=ranks)
        whole, part = (
            step_seconds(link, method, Gradients((1000,), itemsize), 0.0) for method, itemsize in ((NONE, 4), (BF16, 4))
        )
        assert part / whole == pytest.approx(sent / 4)
        assert step_seconds(link, NONE, Gradients((1000,), 2), 0.0) == part


def test_computation_hides_all_buckets_but_the_last():
    gradients = Gradients((1000, 1000, 1000))
    link = HostLink(2, 0.0, 4000.0)  # a second for each bucket
    assert step_seconds(link, NONE, gradients, 0.0) == pytest.approx(3.0)
    assert step_seconds(link, NONE, gradients, 0.9) == pytest.approx(0.5 + 3.0)  # the first is ready after 0.3 + 0.2
    assert step_seconds(link, NONE, gradients, 90.0) == pytest.approx(91.0)
    whole = Gradients((3000,))
    assert step_seconds(link, NONE, whole, 90.0) == pytest.approx(93.0)


def test_several_passes_share_the_time_of_one_reduction():
    alone = step_seconds(SLOW, NONE, RESNET, 0.1)
    assert step_seconds(SLOW, ACCUMULATE, RESNET, 0.1) == pytest.approx((3 * 0.1 + alone) / 4)


@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: method.name)
def test_no_prediction_gets_shorter_when_the_link_or_the_core_gets_slower(method):
    for compute in (0.0, 0.03, 2.0):
        for better, worse in (
            (HostLink(2, 0.01, 1e8, 1e-9, 1e-9), HostLink(2, 0.02, 1e8, 1e-9, 1e-9)),
            (HostLink(2, 0.01, 1e8, 1e-9, 1e-9), HostLink(2, 0.01, 1e7, 1e-9, 1e-9)),
            (HostLink(2, 0.01, 1e8, 1e-9, 1e-9), HostLink(3, 0.01, 1e8, 1e-9, 1e-9)),
            (HostLink(2, 0.01, 1e8, 1e-9, 1e-9), HostLink(2, 0.01, 1e8, 5e-9, 5e-9)),
        ):
            assert step_seconds(better, method, RESNET, compute) <= step_seconds(worse, method, RESNET, compute)
        assert step_seconds(SLOW, method, RESNET, compute) >= compute


def test_nothing_is_coded_where_it_does_not_pay():
    assert chosen(FAST) is NONE  # coding takes longer than sending
    assert chosen(HostLink(1, 0.0, float("inf")), compute=0.0) is NONE  # one host
    assert chosen(SLOW, Gradients((1,))) is NONE  # only latency
    assert chosen(HostLink(2, 0.0, 1.25e6), Gradients((300,))) is NONE  # less than 1 ms
    assert chosen(HostLink(2, 0.0, 1.25e6), Gradients((3000,))) is INT8
    assert chosen(SLOW, Gradients(())) is NONE
    assert chosen(SLOW, RESNET, compute=60.0) is NONE  # the exchange is hidden
    assert chosen(SLOW, Gradients(RESNET.buckets, itemsize=2), methods=(NONE, BF16)) is NONE  # bf16 saves nothing there


def test_a_link_that_gets_slower_crosses_each_point_once():
    order = [chosen(HostLink(2, 1e-4, rate, coding=1e-9), RESNET, 0.12) for rate in (1e11, 1e9, 5e8, 2e8, 1e8, 1e7, 1e6)]
    assert order == sorted(order, key=AUTO_METHODS.index)
    assert set(order) == {NONE, BF16, INT8}


def test_a_less_accurate_method_needs_a_tenth():
    assert choose((NONE, BF16), {NONE: 1.0, BF16: 0.91}.get) is NONE
    assert choose((NONE, BF16), {NONE: 1.0, BF16: 0.89}.get) is BF16
    assert choose(AUTO_METHODS, {NONE: 1.0, BF16: 0.5, INT8: 0.46}.get) is BF16
    assert choose(AUTO_METHODS, {NONE: 1.0, BF16: 0.95, INT8: 0.4}.get) is INT8


def test_buckets_are_those_of_the_knobs():
    assert bucket_sizes(10, 8, 16) == (2, 4, 4)
    assert bucket_sizes(0, 8, 16) == ()
    assert sum(RESNET.buckets) == 11_200_000


class Wire:
    """A link as `find_link` sees it: each allreduce takes a latency and the time of its bytes."""

    def __init__(self, latency, seconds_per_byte, coding):
        self.latency, self.each, self.coding = latency, seconds_per_byte, coding
        self.spent, self.largest = 0.0, 0

    def __call__(self, elements, coded):
        nbytes = elements * (INT8.element_bytes if coded else 4)
        seconds = self.latency + nbytes * self.each + coded * elements * self.coding
        self.spent, self.largest = self.spent + seconds, max(self.largest, elements)
        return seconds


@pytest.mark.parametrize("rate", [1.25e5, 1.25e6, 1.25e7, 1.25e8, 1.25e10])
@pytest.mark.parametrize("latency", [1e-5, 0.02])
def test_a_link_is_found_in_a_bounded_time(rate, latency):
    wire = Wire(latency, 1 / rate, 3e-9)
    link = find_link(2, 4, wire)
    assert (link.hosts, link.ranks) == (2, 4)
    assert link.latency == pytest.approx(latency, rel=1e-3)
    assert link.rate == pytest.approx(rate, rel=1e-3)
    assert link.coding == pytest.approx(3e-9, rel=0.1, abs=1e-10)
    assert wire.spent < 3.5
    assert wire.largest <= 1 << 20


def test_noise_cannot_make_a_figure_negative():
    times = iter([0.001, 0.3, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    link = find_link(3, 3, lambda elements, coded: next(times))  # longer messages took less time
    assert link.latency >= 0
    assert link.rate > 0
    assert link.coding >= 0
    assert chosen(link) is NONE


def test_one_host_is_not_measured():
    def refuse(elements, coded):
        raise AssertionError("measured")

    assert find_link(1, 2, refuse).hosts == 1


def test_the_table_and_the_advice_have_the_measured_times():
    measured = {NONE: 1.0, BF16: 0.6, INT8: 0.3, INT4: 0.29, POWERSGD: 0.1, ACCUMULATE: 0.5}
    rows = [(method, 0.9, measured[method]) for method in ALL_METHODS]
    assert link_model.table(rows)[3].split() == ["int8", "900.0", "ms", "300.0", "ms", "compression=hvd.Compression.int8()"]
    said = link_model.advice(measured, 0.03)
    assert said.startswith("Use compression=hvd.Compression.int8(): a step takes 1 s without compression,")
    assert "powersgd(rank=2) needs only 100 ms" in said
    same = dict.fromkeys(ALL_METHODS, 0.03)
    assert link_model.advice(same, 0.03).startswith("Use no compression: a step takes 30 ms")
    assert "changes the training" not in link_model.advice(same, 0.03)
