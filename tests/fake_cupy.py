"""As much of CuPy as compare.timing touches, on a device that runs whatever it is given at once, in virtual time.

It has one stream. A launch outside a capture happens when it is queued and moves the device's clock; inside
one it is remembered and happens at graphLaunch. Arrays are NumPy's, so that probes can write into them.
"""

import ctypes
import types

import numpy as np


class Device:
    """The virtual device: nanoseconds, a clock in MHz, and what happened."""

    def __init__(self, sms=4, mhz=1500.0):
        self.sms, self.mhz = sms, mhz
        self.ns = 1_000_000.0
        self.cycles = 0.0
        self.captured = None
        self.graphs = {}
        self.log = []
        self.blocks_on_hold = False
        self.gate = None

    def spend(self, seconds):
        self.ns += seconds * 1e9
        self.cycles += seconds * self.mhz * 1e6

    def do(self, what, action):
        if self.captured is not None:
            self.captured.append((what, action))
        else:
            self.log.append(what)
            action()


class Array:
    def __init__(self, array):
        self.array = array
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)
        self.nbytes = array.nbytes

    def get(self):
        return self.array.copy()


class Pinned(bytearray):
    @property
    def ptr(self):
        return ctypes.addressof((ctypes.c_char * len(self)).from_buffer(self))


def make(device, name="NVIDIA H200"):
    """A module that stands in for cupy, driving ``device``."""

    class CUDARuntimeError(RuntimeError):
        pass

    class Stream:
        ptr = 77

        def __init__(self, non_blocking=False):
            assert non_blocking

        def synchronize(self):
            assert device.captured is None, "synchronised inside a capture"
            assert device.gate is None or device.gate[0] == 1, "waited for a stream whose gate is closed"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    class Event:
        def record(self, stream):
            assert isinstance(stream, Stream)
            assert device.captured is None
            self.ns = device.ns

        @property
        def done(self):
            return True

    def function(entry):
        def launch(grid, block, args, shared_mem=0, stream=None):
            assert isinstance(stream, Stream)

            def act():
                if entry == "hold" and device.blocks_on_hold:
                    ctypes.c_int.from_address(int(args[1])).value = 1
                if entry == "read_clocks":
                    device.spend(1e-6)
                    out = np.ctypeslib.as_array(
                        (ctypes.c_uint64 * (2 * device.sms)).from_address(int(args[0]))
                    ).reshape(device.sms, 2)
                    out[:, 0], out[:, 1] = int(device.ns), int(device.cycles)
                if entry == "nothing":
                    device.spend(2e-6)

            device.do(entry, act)

        return launch

    def end_capture(stream):
        captured, device.captured = device.captured, None
        if captured is None or any(what == "illegal" for what, _ in captured):
            raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated")
        device.graphs[len(device.graphs) + 1] = captured
        return len(device.graphs)

    def begin_capture(stream, mode):
        assert stream == Stream.ptr
        device.captured = []

    def launch_graph(handle, stream):
        for what, action in device.graphs[handle]:
            device.do(what, action)

    def set_gate(size):
        pinned = Pinned(size)
        device.gate = np.frombuffer(pinned, dtype=np.int32, count=2)
        return pinned

    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceProperties=lambda ordinal: {
            "name": name.encode(), "multiProcessorCount": device.sms, "l2CacheSize": 60 << 20, "major": 9, "minor": 0,
        },
        deviceGetPCIBusId=lambda ordinal: "0000:01:00.0",
        streamCaptureModeThreadLocal=1,
        streamBeginCapture=begin_capture,
        streamEndCapture=end_capture,
        graphInstantiate=lambda graph: graph,
        graphDestroy=lambda graph: None,
        graphUpload=lambda handle, stream: None,
        graphLaunch=launch_graph,
        graphExecDestroy=lambda handle: device.log.append("destroyed"),
    )  # fmt: skip
    cuda = types.SimpleNamespace(
        runtime=runtime,
        Device=lambda ordinal: types.SimpleNamespace(use=lambda: None),
        Stream=Stream,
        Event=Event,
        get_elapsed_time=lambda begin, end: (end.ns - begin.ns) / 1e6,
        alloc_pinned_memory=set_gate,
    )
    module = types.ModuleType("cupy")
    module.cuda = cuda
    module.RawModule = lambda path: types.SimpleNamespace(get_function=function)
    module.zeros = lambda shape, dtype: Array(np.zeros(shape, dtype))
    return module
