"""Blocks on the GPU of this process: brought there while others are computed, and kept there.

Two or three threads share the device. One at a time computes, on the stream for arithmetic; the
others read the blocks that follow, gather them in page-locked memory of their own and send them on
the stream for copies. Which thread does what changes no number.

What fits into a budget of the device's memory stays there for the fit, first come, first kept: an
epoch visits every block once, so that a cache that put out the oldest would never be hit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from models.backend.arrays import ALIGNED, Device, count_devices, to_host
from models.core.block import BagBlock
from models.core.errors import ParameterError
from models.core.protocol import Arrays, Stats, override
from models.training.executor import ThreadExecutor

Wanted = Literal["auto", "cpu", "gpu"]

DEVICE_PIXELS = 1 << 17  # of a block: fewer do not keep a device busy
CACHE_SHARE = 0.5  # of the device's memory, that blocks may stay in
THREADS = 3  # one computes, one sends, one reads
# Of a block, that go to the device.
FIELDS = ("x", "weight", "coords", "y", "trials", "squares", "margin", "source")


def find_device(wanted: Wanted = "auto", memory: int | None = None) -> Device | None:
    """Return this process's GPU, or None where the work is the processor's.

    Parameters
    ----------
    wanted : {"auto", "cpu", "gpu"}
        ``auto`` takes a GPU where there is one.
    memory : int, optional
        Bytes of its memory that we may fill.

    Raises
    ------
    ParameterError
        If a GPU is wanted and there is none.
    """
    if wanted == "cpu" or (wanted == "auto" and not count_devices()):
        return None
    if not count_devices():
        msg = (
            "device: gpu, but this process finds no GPU; check the card and its driver "
            "(nvidia-smi), pip install 'disagg[gpu]', or use cpu"
        )
        raise ParameterError(msg)
    return Device(memory)


def blocks_to_join(block_bags: np.ndarray, n_pix: int, batch_bags: int | None) -> int:
    """Return how many blocks in a row make one for a device.

    It follows from the data and the model alone, not from the device.

    Parameters
    ----------
    block_bags : (n_block,) int
        Training bags in each block.
    n_pix : int
        Pixels of all of them.
    batch_bags : int or None
        Bags of a step, of which a joined block holds no more than half; None for full sweeps.
    """
    n_block, n_bag = len(block_bags), max(1, int(block_bags.sum()))
    count = DEVICE_PIXELS * n_block // max(1, n_pix)
    if batch_bags is not None:
        count = min(count, batch_bags * n_block // (2 * n_bag))
    return max(1, count)


class JoinedSource:
    """Blocks of a source, so many in a row put together; everything else is the source's.

    Parameters
    ----------
    source : BlockSource
    n_joined : int
    """

    def __init__(self, source: Any, n_joined: int) -> None:
        self._source = source
        self.n_joined = n_joined
        starts = np.arange(0, len(source.block_bags), n_joined)
        self.block_bags = np.add.reduceat(source.block_bags, starts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def members(self, number: int) -> list[int]:
        """Return the blocks of joined block ``number`` that hold training bags."""
        first = number * self.n_joined
        bags = self._source.block_bags[first : first + self.n_joined]
        return (first + np.flatnonzero(bags)).tolist()

    def parts(self, number: int) -> list[BagBlock]:
        """Return the blocks that make joined block ``number``."""
        return [self._source.read(each) for each in self.members(number)]

    @override
    def read(self, number: int) -> BagBlock:
        return BagBlock.join(self.parts(number))

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Pass on which blocks will be read next, to sources that listen."""
        ahead = getattr(self._source, "read_ahead", None)
        if ahead is not None:
            ahead([each for number in numbers for each in self.members(number)])

    def fingerprint(self) -> str:
        """Fingerprint of the source and of how its blocks are joined."""
        return f"{self._source.fingerprint()}/{self.n_joined}"


def joined(source: Any, n_joined: int) -> Any:
    """Return a source with its blocks joined, itself where there is nothing to join."""
    return source if n_joined == 1 else JoinedSource(source, n_joined)


@dataclass(frozen=True)
class DeviceBlock(BagBlock):
    """A block on its way to the device; ``offsets``, ``bag`` and ``area`` stay with the host.

    Attributes
    ----------
    sent : event
        Of the copy: see :meth:`models.backend.arrays.Device.arrived`.
    """

    sent: Any = None


def moved(block: BagBlock, move: Callable[[Any], Any]) -> BagBlock:
    """Return a block with its arrays brought elsewhere; ``offsets``, ``bag`` and ``area`` stay."""

    def there(array: Any) -> Any:
        return None if array is None else move(array)

    return BagBlock(
        there(block.x),
        there(block.weight),
        there(block.coords),
        block.offsets,
        there(block.y),
        block.bag,
        there(block.trials),
        there(block.squares),
        there(block.margin),
        there(block.source),
        block.area,
    )


class DeviceSource:
    """A source whose blocks come on a device.

    Parameters
    ----------
    source : BlockSource
        May be a :class:`JoinedSource`.
    device : Device
    budget : int, optional
        Bytes of blocks that stay there; half of the device's memory where not given.
    """

    def __init__(self, source: Any, device: Device, budget: int | None = None) -> None:
        self._source, self._device = source, device
        self._budget = int(CACHE_SHARE * device.memory) if budget is None else budget
        self._kept: dict[int, DeviceBlock] = {}
        self._held = 0
        self._lock = threading.Lock()
        self._own = threading.local()
        self.block_bags = source.block_bags

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, number: int) -> DeviceBlock:
        """Start to bring a block to the device, unless it is there; it may still be on its way."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        parts = getattr(self._source, "parts", None)
        block, n_byte = self._send(parts(number) if parts else [self._source.read(number)])
        with self._lock:
            if number not in self._kept and self._held + n_byte <= self._budget:
                self._kept[number] = block
                self._held += n_byte
        return block

    def read_ahead(self, numbers: Sequence[int]) -> None:
        """Pass on which blocks will be read next, but for those that are here."""
        ahead = getattr(self._source, "read_ahead", None)
        if ahead is not None:
            ahead([each for each in numbers if each not in self._kept])

    def _send(self, parts: Sequence[BagBlock]) -> tuple[DeviceBlock, int]:
        """Gather blocks in this thread's page-locked buffer, as one, and send them."""
        layout, n_byte = [], 0
        for name in FIELDS:
            arrays = [getattr(part, name) for part in parts]
            if arrays[0] is None:
                continue
            shape = (sum(each.shape[0] for each in arrays), *arrays[0].shape[1:])
            size = int(np.prod(shape)) * arrays[0].dtype.itemsize
            layout.append((name, arrays, shape, n_byte, size))
            n_byte += -(-size // ALIGNED) * ALIGNED
        staged = self._buffer(n_byte)
        for _, arrays, shape, at, size in layout:
            view = staged[at : at + size].view(arrays[0].dtype).reshape(shape)
            np.concatenate(arrays, out=view)
        target, sent = self._device.send(staged)
        self._own.sent = sent
        there = {
            name: target[at : at + size].view(arrays[0].dtype).reshape(shape)
            for name, arrays, shape, at, size in layout
        }
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        block = DeviceBlock(
            there["x"],
            there["weight"],
            there.get("coords"),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            there["y"],
            np.concatenate([part.bag for part in parts]),
            there.get("trials"),
            there.get("squares"),
            there.get("margin"),
            there.get("source"),
            None if parts[0].area is None else np.concatenate([part.area for part in parts]),
            sent,
        )
        return block, n_byte

    def _buffer(self, n_byte: int) -> np.ndarray:
        """Return the thread's buffer, once what it held has left."""
        own = self._own
        if getattr(own, "sent", None) is not None:
            self._device.sent(own.sent)
        buffer: np.ndarray | None = getattr(own, "buffer", None)
        if buffer is None or buffer.shape[0] < n_byte:
            buffer = own.buffer = self._device.buffer(n_byte + n_byte // 4)
        return buffer[:n_byte]


class OnDevice:
    """A model whose blocks are a device's, one at a time; its sums come back to the host.

    Parameters
    ----------
    model : Model
    device : Device
    """

    def __init__(self, model: Any, device: Device) -> None:
        self._model, self._device = model, device
        self._turn = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @override
    def block_stats(self, params: Arrays, block: Any, local: Any) -> tuple[Stats, Any]:
        with self._turn, self._device:
            if block is not None:
                self._device.arrived(block.sent)
            stats, keep = self._model.block_stats(params, block, local)
            sums = {name: to_host(value) for name, value in stats.sums.items()}
        return Stats(float(stats.bound), stats.n_bag, sums), keep


def block_executor(
    model: Any, source: Any, n_thread: int, device: Device | None = None
) -> ThreadExecutor:
    """Return who computes a process's blocks: threads, or threads that feed its GPU.

    Parameters
    ----------
    model : Model
    source : BlockSource
    n_thread : int
        Threads where there is no device.
    device : Device, optional
    """
    if device is None:
        return ThreadExecutor(model, source, n_thread)
    there: Any = DeviceSource(source, device)
    return ThreadExecutor(cast(Any, OnDevice(model, device)), there, THREADS)


@contextmanager
def placed(device: Device | None) -> Iterator[Callable[[Any], Any]]:
    """Do what follows on a device, or on the host where it is None.

    Yields
    ------
    callable
        Brings an array there.
    """
    if device is None:
        yield lambda array: array
        return
    with device:
        yield device.put
