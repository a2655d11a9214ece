"""Counting the instances of many bags above many thresholds, by bins.

In a node of many bags most of the time goes into comparing each instance with each threshold, and
each bag's share with each ratio. Both comparisons can be read from tables. Once for all trees the
values of a feature are put into 4096 bins of about equally many values, and these into 256 groups.
A node's thresholds then fall into a few groups: instances in all others are above exactly the
thresholds of lower groups. The others are compared by their bins, and only those in the same bin by
their values, which are rarely in the processor's cache. Eight counts of a bag are added up at once,
as the bytes of one number. And in a small bag there are few shares, so that a table holds the
number of ratios below each. Every count is that of the comparisons.
"""

from __future__ import annotations

import numpy as np

from models.backend.compiled import compiled
from models.mil.trees.value_bins import N_BIN

N_GROUP = 256
SHIFT = (N_BIN // N_GROUP).bit_length() - 1  # from a bin to its group
PACK = 8  # counts in a 64-bit number, a byte each
STRETCH = np.uint64(255)  # instances that a byte can count
WIDE = 24  # bags from which a node is worth its tables
SMALL_BAG = 32  # instances up to which a bag's shares are in a table
N_SHARE = (SMALL_BAG + 1) * (SMALL_BAG + 2) // 2  # counts of all small bags, 0 included
UNSURE = np.uint64(2**64 - 1)
SMALL, SHARES = np.uint64(SMALL_BAG), np.uint64(N_SHARE)
ONE, BYTE, EIGHT = np.uint64(1), np.uint64(255), np.uint64(8)


# mypy: disable-error-code="no-untyped-def"


@compiled
def range_of(ranges, bags):
    """Return the lowest and the highest value of a feature in some bags."""
    low, high = np.inf, -np.inf
    for a in range(bags.size):
        low = min(low, ranges[bags[a], 0])
        high = max(high, ranges[bags[a], 1])
    return low, high


@compiled
def _fill_table(cuts, first, last, edges, cut_codes, table):
    """Write for each group which of the thresholds ``first:last``, ascending, its values exceed.

    A byte for each threshold; ``UNSURE`` where a threshold is in the group. ``cut_codes`` are the
    thresholds' bins.
    """
    done, above = 0, np.uint64(0)
    for k in range(first, last):
        code = np.searchsorted(edges, cuts[k])
        cut_codes[k - first] = code
        group = code >> SHIFT
        while done < group:
            table[done] = above
            done += 1
        if done == group:
            table[group] = UNSURE
            done += 1
        above |= ONE << (EIGHT * np.uint64(k - first))
    while done < table.size:
        table[done] = above
        done += 1


@compiled
def _exceeded(value, cuts, first, last):
    """Return which of the thresholds a value exceeds, a byte for each."""
    found = np.uint64(0)
    for k in range(first, last):
        if value > cuts[k]:
            found |= ONE << (EIGHT * np.uint64(k - first))
    return found


@compiled
def _count_bag(row, codes, low, high, cuts, first, last, cut_codes, table, hits):
    """Count a bag's instances above each of the thresholds ``first:last``."""
    for k in range(last - first):
        hits[k] = 0
    i = low
    while i < high:
        stop = min(i + STRETCH, high)
        packed = np.uint64(0)
        while i < stop:
            exceeded = table[codes[i] >> SHIFT]
            if exceeded == UNSURE:
                exceeded, same = np.uint64(0), False
                for k in range(last - first):
                    same |= codes[i] == cut_codes[k]
                    exceeded |= np.uint64(codes[i] > cut_codes[k]) << EIGHT * np.uint64(k)
                if same:
                    exceeded = _exceeded(row[i], cuts, first, last)
            packed += exceeded
            i += ONE
        for k in range(last - first):
            hits[k] += np.int64(packed & BYTE)
            packed >>= EIGHT


@compiled
def _fill_shares(size, ratios, absolute, n_class, places):
    """Write where ``sums`` holds the bags of a size, for each threshold and each count.

    That is, by the number of the threshold's ratios, ascending, that the bag's share exceeds.
    ``places`` (n_value N_SHARE,) uint32.
    """
    n_ratio = ratios.shape[1]
    for k in range(ratios.shape[0]):
        first = k * N_SHARE + size * (size + 1) // 2
        n = 0
        for count in range(size + 1):
            share = float(count) if absolute else count / size
            while n < n_ratio and share > ratios[k, n]:
                n += 1
            places[first + count] = (k * (n_ratio + 1) + n) * n_class


@compiled
def place_bags(
    row,
    codes,
    offsets,
    bags,
    cuts,
    ratios,
    absolute,
    label,
    y,
    regression,
    edges,
    table,
    cut_codes,
    hits,
    places,
    filled,
    sums,
):
    """Add up the bags by how many ratios their share of instances above a threshold exceeds.

    Parameters
    ----------
    row, codes : (n_pix,)
        Values of the feature and their bins.
    cuts : (n_value,)
        Thresholds, ascending.
    ratios : (n_value, n_ratio)
        Those of each threshold, ascending.
    table, cut_codes, hits, places, filled
        Room for the work.
    sums : (n_value, n_ratio + 1, n_class)
        Filled: ``sums[k, j]`` is of the bags that exceed at least ``j`` ratios (where ``j > 0``).
    """
    n_value, n_ratio = ratios.shape
    n_class = sums.shape[2]
    flat = sums.reshape(sums.size)
    flat[:] = 0.0
    filled[:] = False
    for first in range(0, n_value, PACK):
        last = min(first + PACK, n_value)
        _fill_table(cuts, first, last, edges, cut_codes, table)
        # Unsigned numbers throughout: numba asks of signed ones whether they count from the end.
        for a in range(bags.size):
            bag = np.uint64(bags[a])
            low, high = np.uint64(offsets[bag]), np.uint64(offsets[bag + ONE])
            size = high - low
            column = np.uint64(0) if regression else np.uint64(label[bag])
            if size > SMALL:
                _count_bag(row, codes, low, high, cuts, first, last, cut_codes, table, hits)
                for k in range(first, last):
                    share = float(hits[k - first]) if absolute else hits[k - first] / size
                    j = 0
                    for r in range(n_ratio):
                        j += share > ratios[k, r]
                    place = np.uint64((k * (n_ratio + 1) + j) * n_class) + column
                    if regression:
                        flat[place] += y[bag]
                        flat[place + ONE] += 1.0
                    else:
                        flat[place] += 1.0
                continue
            if not filled[size]:
                _fill_shares(np.int64(size), ratios, absolute, n_class, places)
                filled[size] = True
            # As in _count_bag: a function of both makes small bags half as slow again.
            packed = np.uint64(0)
            i = low
            while i < high:
                exceeded = table[codes[i] >> SHIFT]
                if exceeded == UNSURE:
                    exceeded, same = np.uint64(0), False
                    for k in range(last - first):
                        same |= codes[i] == cut_codes[k]
                        exceeded |= np.uint64(codes[i] > cut_codes[k]) << EIGHT * np.uint64(k)
                    if same:
                        exceeded = _exceeded(row[i], cuts, first, last)
                packed += exceeded
                i += ONE
            start = np.uint64(first) * SHARES + (size * (size + ONE) >> ONE)
            for _ in range(last - first):
                place = np.uint64(places[start + (packed & BYTE)]) + column
                if regression:
                    flat[place] += y[bag]
                    flat[place + ONE] += 1.0
                else:
                    flat[place] += 1.0
                packed >>= EIGHT
                start += SHARES
    for k in range(n_value):
        for j in range(n_ratio - 1, -1, -1):
            for c in range(n_class):
                sums[k, j, c] += sums[k, j + 1, c]


@compiled
def count_above(row, codes, edges, offsets, bags, value, hits):
    """Count each bag's instances above one threshold."""
    # All unsigned: see above.
    code = np.uint16(np.searchsorted(edges, value))
    for a in range(bags.size):
        bag = np.uint64(bags[a])
        low, high = np.uint64(offsets[bag]), np.uint64(offsets[bag + ONE])
        n, same = 0, 0
        i = low
        while i < high:
            n += codes[i] > code
            same += codes[i] == code
            i += ONE
        if same > 0:
            i = low
            while i < high:
                n += (codes[i] == code) & (row[i] > value)
                i += ONE
        hits[a] = n
