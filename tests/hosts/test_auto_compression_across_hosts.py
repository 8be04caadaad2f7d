"""`Compression.auto` between emulated hosts: it measures the real link, and codes what a slow one carries and a fast one not.

The times that decide are injected, as a busy machine makes any link slow.
"""

from support.hosts import emulated_hosts

PROGRAM = """
    import numpy as np
    import hvdlite as hvd
    from hvdlite import link_measurement
    from hvdlite.objects import allgather_object

    own_seconds = link_measurement.own_seconds
    everyone = [np.random.default_rng(rank).standard_normal(200_000).astype(np.float32) for rank in range(3)]
    wanted = np.mean(everyone, axis=0)

    def coded_share(rate):
        "Reduces once with a link of this rate; returns which part of the bytes were sent as codes, and the result's error."
        def seconds(elements, coded, set_id):
            own_seconds(elements, coded, set_id)
            return (1.016 if coded else 4) * elements / (rate * (1 + hvd.rank())) + coded * elements * 1e-9

        link_measurement.own_seconds = seconds
        hvd.init()
        hvd.allreduce(np.ones(1, np.float32), compression=hvd.Compression.auto)
        before = hvd.stats()
        mean = hvd.allreduce(everyone[hvd.rank()], compression=hvd.Compression.auto)
        spent = hvd.stats() - before
        assert len({each.tobytes() for each in allgather_object(mean)}) == 1
        total = sum(allgather_object(spent.coded_bytes))
        hvd.shutdown()
        return total, float(abs(mean - wanted).max())

    coded, error = coded_share(1.25e6)
    assert coded > 0 and 1e-4 < error < 0.1, (coded, error)
    coded, error = coded_share(1.25e11)
    assert coded == 0 and error < 1e-6, (coded, error)

    link_measurement.own_seconds = own_seconds
    hvd.init()
    link = link_measurement.measure_link(hvd.global_process_set)
    assert link.hosts == 2 and link.rate > 0 and link.latency >= 0 and link.coding >= 0, link
    assert set(allgather_object(link)) == {link}
    print("ok")
"""


def test_a_slow_link_carries_codes_and_a_fast_one_does_not():
    with emulated_hosts(2) as hosts:
        job = hosts.run([2, 1], PROGRAM)
    assert job.returncode == 0, job.report()
    assert list(job.stdout.values()) == ["ok\n"] * 3, job.report()
