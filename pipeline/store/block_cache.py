"""A cache of decoded blocks with a memory budget and read-ahead."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from models.core.block import BagBlock

N_READER = 2  # threads: one waits for the disk while the other decodes
MAX_PENDING = 64  # blocks read ahead and not requested yet


class BlockCache:
    """Caches the first blocks that fit its budget, and reads ahead.

    An epoch reads each block once, in a new random order. Blocks are therefore never evicted for
    others: space for a share ``s`` of the blocks saves a share ``s`` of the reads. Evicting the
    least recently used block would save ``s + (1 - s) log(1 - s)``: 15 % instead of 50 %.

    Parameters
    ----------
    load : callable
        Reads and decodes a block by its number; called from several threads.
    budget : float
        Memory for cached blocks, bytes; the few blocks read ahead need more.

    Attributes
    ----------
    n_load : int
        Blocks that were read and decoded so far.
    """

    def __init__(self, load: Callable[[int], BagBlock], budget: float) -> None:
        self._load = load
        self._budget = budget
        self._kept: dict[int, BagBlock] = {}
        self._bytes = 0
        self._pending: OrderedDict[int, Future[BagBlock]] = OrderedDict()
        self._lock = threading.Lock()
        self._readers: ThreadPoolExecutor | None = None
        self.n_load = 0

    @property
    def n_byte(self) -> int:
        """Bytes of the blocks kept."""
        return self._bytes

    def get(self, number: int) -> BagBlock:
        """Return a block: cached, read ahead, or read now."""
        with self._lock:
            block = self._kept.get(number)
            coming = self._pending.pop(number, None)
        if block is not None:
            return block
        # If no reader has started on it, reading it here is faster than waiting.
        block = self._read(number) if coming is None or coming.cancel() else coming.result()
        with self._lock:
            size = block_bytes(block)
            if number not in self._kept and self._bytes + size <= self._budget:
                self._kept[number] = block
                self._bytes += size
        return block

    def ahead(self, numbers: Iterable[int]) -> None:
        """Start reading blocks that will be requested next."""
        with self._lock:
            for number in numbers:
                if number in self._kept or number in self._pending:
                    continue
                if self._readers is None:
                    self._readers = ThreadPoolExecutor(N_READER, thread_name_prefix="reader")
                self._pending[number] = self._readers.submit(self._read, number)
            while len(self._pending) > MAX_PENDING:  # of a step that was given up
                self._pending.popitem(last=False)[1].cancel()

    def keep_only(self, first: int, last: int) -> None:
        """Evict the blocks before ``first`` and after ``last``, which other workers have now."""
        with self._lock:
            for number in [n for n in self._kept if not first <= n <= last]:
                self._bytes -= block_bytes(self._kept.pop(number))

    def close(self) -> None:
        """Empty the cache and stop reading; it can be used again."""
        with self._lock:
            readers, self._readers = self._readers, None
            self._pending.clear()
            self._kept.clear()
            self._bytes = 0
        if readers is not None:
            readers.shutdown(wait=True, cancel_futures=True)

    def _read(self, number: int) -> BagBlock:
        block = self._load(number)
        with self._lock:
            self.n_load += 1
        return block


def block_bytes(block: BagBlock) -> int:
    """Return the memory of a block's arrays."""
    arrays = (
        *(block.x, block.weight, block.coords),
        *(block.offsets, block.y, block.bag, block.trials),
        *(block.margin, block.source),
    )
    return sum(array.nbytes for array in arrays if array is not None)
