"""Makes requests to reduce arrays in place, in the form that the engine takes from its callers."""

from support.thread_ranks import ALLREDUCE, SUM

F32, F64, I64 = 10, 11, 7


def address(array):
    return array.__array_interface__["data"][0]


def allreduce(name, array, op=SUM, **more):
    """A request to reduce an array in place, as a tuple."""
    defaults = {"root": 0, "process_set": 0, "prescale": 1.0, "postscale": 1.0, "group": "", "group_size": 0, "group_index": 0}
    defaults |= {"splits": (), "device": -1, "layout": 0, "flags": 0}
    dtype = {"float32": F32, "float64": F64, "int64": I64}[array.dtype.name]
    place = address(array)
    return (ALLREDUCE, name, dtype, array.shape, place, place, op, *(defaults | more).values())
