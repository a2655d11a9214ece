"""Bag-level randomized trees: growing one, and asking one, compiled.

The paper's rules are up to ``K T T`` a node; scanning the node's instances for each of them costs
``K T T N_I``. Here each value is placed among the sorted thresholds once, which gives every bag's
counts for all thresholds together; and each bag's share is placed among the sorted ratios once,
which gives both sides' class counts for all ratios together. Rules are still scored in the order in
which they were drawn: of equal ones the first is kept, as in Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

GINI, ENTROPY, VARIANCE = 0, 1, 2
RELATIVE, ABSOLUTE, RELIC = 0, 1, 2
ALL_BUT = 1.0 - 2.0**-53  # the ratio that only "all instances" exceeds
TIE = 1e-12  # scores that differ by less than this a bag are equal: rounding must not decide

GOLDEN, MIX_1, MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
S30, S27, S31, S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the interpreter's lock, keeping the machine code where that is possible.

    An installation that nobody may write to, used by somebody without a home (in a container, say),
    has no place for it: the function is then compiled anew in each process.
    """
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


# mypy: disable-error-code="no-untyped-def"
# Types below are numba's: float64 and int64 scalars, arrays as grow_tree names them. Loops stand
# where NumPy would have slices: they compile in half the time, and run as fast.


@compiled
def _mix(z):
    """Scramble 64 bits: the output function of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    return z ^ (z >> S31)


@compiled
def _uniform(stream):
    """Draw from [0, 1); ``stream`` (1,) uint64 moves on."""
    stream[0] += GOLDEN
    return np.float64(_mix(stream[0]) >> S11) * 2.0**-53


@compiled
def _below(stream, n):
    """Draw one of 0 to n - 1."""
    return min(int(_uniform(stream) * n), n - 1)


@compiled
def _choose_features(stream, pool, chosen, swaps):
    """Choose without replacement; the pool is left as it was found."""
    for i in range(chosen.size):
        k = i + _below(stream, pool.size - i)
        pool[i], pool[k] = pool[k], pool[i]
        chosen[i], swaps[i] = pool[i], k
    for i in range(chosen.size - 1, -1, -1):
        k = swaps[i]
        pool[i], pool[k] = pool[k], pool[i]


@compiled
def _sort(drawn, held, rank, order):
    """Put ``drawn`` in order into ``held``; ``rank`` is where each of them went."""
    for i in range(drawn.size):
        k = i
        while k > 0 and held[k - 1] > drawn[i]:
            held[k], order[k] = held[k - 1], order[k - 1]
            k -= 1
        held[k], order[k] = drawn[i], i
    for k in range(drawn.size):
        rank[order[k]] = k


@compiled
def _score(sums, n, criterion, n_log_n):
    """Score one side of a split: the purer, the higher. The two sides add.

    With ``n_c`` bags of class ``c``: ``sum n_c^2 / n`` is ``n`` less ``n`` times the Gini impurity,
    ``sum n_c log(n_c / n)`` is ``-n`` times the entropy, ``(sum y)^2 / n`` is the sum of squares
    less ``n`` times the variance.
    """
    if n <= 0.0:
        return 0.0
    if criterion == VARIANCE:
        return sums[0] * sums[0] / n
    score = 0.0
    for c in range(sums.size):
        if criterion == GINI:
            score += sums[c] * sums[c]
        else:
            score += n_log_n[int(sums[c])]
    return score / n if criterion == GINI else score - n_log_n[int(n)]


@compiled
def _goes_left(row, low, high, value, ratio, missing_left, categorical, variant):
    """Evaluate equation (2) for the bag with the instances ``low:high``."""
    hits, known = 0, 0
    for i in range(low, high):
        known += not np.isnan(row[i])
        hits += (row[i] == value) if categorical else (row[i] > value)
    if known == 0:
        return missing_left
    return hits > ratio if variant == ABSOLUTE else hits / known > ratio


@compiled
def _gather(row, offsets, bags, values):
    """Copy the node's values; return the lowest and the highest, NaN left out."""
    low, high, m = np.inf, -np.inf, 0
    for a in range(bags.size):
        for i in range(offsets[bags[a]], offsets[bags[a] + 1]):
            held = row[i]
            values[m] = held
            low = held if held < low else low
            high = held if held > high else high
            m += 1
    return low, high


@compiled
def _draw_thresholds(stream, values, sizes, n, low, high, categorical, seen, drawn):
    """Draw from [low, high), or among the categories that the node holds."""
    if not categorical:
        for t in range(drawn.size):
            value = low + _uniform(stream) * (high - low)
            drawn[t] = value if value < high else low  # rounding may reach the end
        return
    for i in range(seen.size):
        seen[i] = 0
    m = 0
    for a in range(n):
        m += sizes[a]
    for i in range(m):
        if not np.isnan(values[i]):
            seen[int(values[i])] = 1
    n_seen = 0
    for code in range(seen.size):
        if seen[code]:
            seen[n_seen] = code
            n_seen += 1
    for t in range(drawn.size):
        drawn[t] = seen[_below(stream, n_seen)]


@compiled
def _draw_ratios(stream, variant, largest, drawn):
    """Draw from [0, 1); RELIC's two; or 1 to the largest bag's number, for ``count >= number``."""
    for j in range(drawn.size):
        if variant == RELIC:
            drawn[j] = 0.0 if j == 0 else ALL_BUT
        elif variant == ABSOLUTE:
            drawn[j] = _below(stream, largest) + 0.5
        else:
            drawn[j] = _uniform(stream)


@compiled
def _count(values, sizes, n, cuts, categorical, has_missing, tally, counts, known):
    """Count, for each bag and each threshold, the instances that fulfil the inner condition."""
    m = 0
    for a in range(n):
        known[a] = sizes[a]
        for k in range(tally.size):
            tally[k] = 0
        for i in range(m, m + sizes[a]):
            if has_missing and np.isnan(values[i]):
                known[a] -= 1
            elif categorical:
                for t in range(cuts.size):
                    tally[t] += values[i] == cuts[t]
            else:
                k = 0
                for t in range(cuts.size):
                    k += values[i] > cuts[t]
                tally[k] += 1
        m += sizes[a]
        hits = 0
        for t in range(cuts.size - 1, -1, -1):
            hits = tally[t] if categorical else hits + tally[t + 1]
            counts[t, a] = hits


@compiled
def _add_bag(sums, bag, label, y, regression):
    if regression:
        sums[0] += y[bag]
        sums[1] += 1.0
    else:
        sums[label[bag]] += 1.0


@compiled
def _place_shares(counts, known, bags, ratios, absolute, label, y, regression, above):
    """Add up the bags whose share (or count) exceeds the ``k - 1`` lowest ratios: row ``k``."""
    for k in range(above.shape[0]):
        for c in range(above.shape[1]):
            above[k, c] = 0.0
    for a in range(bags.size):
        if counts[a] == 0:  # exceeds no ratio; nor does a bag that knows nothing of the feature
            continue
        k = ratios.size
        if absolute or counts[a] < known[a]:  # a whole bag exceeds all of them
            share = float(counts[a]) if absolute else counts[a] / known[a]
            k = 0
            for j in range(ratios.size):
                k += share > ratios[j]
        _add_bag(above[k], bags[a], label, y, regression)
    for k in range(above.shape[0] - 2, -1, -1):
        for c in range(above.shape[1]):
            above[k, c] += above[k + 1, c]


@compiled
def _divide(row, offsets, bags, spare, value, ratio, missing_left, categorical, variant):
    """Put the bags that go left before the others; return how many they are."""
    n_left, n_right = 0, 0
    for a in range(bags.size):
        bag = bags[a]
        if _goes_left(
            row,
            offsets[bag],
            offsets[bag + 1],
            value,
            ratio,
            missing_left,
            categorical,
            variant,
        ):
            bags[n_left] = bag
            n_left += 1
        else:
            spare[n_right] = bag
            n_right += 1
    for a in range(n_right):
        bags[n_left + a] = spare[a]
    return n_left


@compiled
def grow_tree(
    x, offsets, label, y, n_class, criterion, variant, n_category, has_missing, n_try, n_value, seed
):
    """Grow one tree on all bags: function BuildTree of Algorithm 1.

    Parameters
    ----------
    x : (n_feat, n_pix) float64
        Instances, a feature in a row; categories numbered from 0.
    offsets : (n_bag + 1,) int64
    label : (n_bag,) int64
        Class of each bag; not read in regression.
    y : (n_bag,) float64
        Response of each bag, in deviations; read in regression alone.
    n_class : int
        Number of classes; 2 in regression, where sums are of ``y`` and of one.
    criterion, variant : int
        What a split is scored by; what a bag's count is compared with.
    n_category : (n_feat,) int64
        0 where a feature is a number.
    has_missing : bool
        Whether ``x`` holds NaN.
    n_try, n_value : int
        ``K`` and ``T``.
    seed : uint64

    Returns
    -------
    feature : (n_node,) int32
        Feature asked for, -1 in a leaf.
    value, ratio : (n_node,) float64
        ``v`` and ``r``.
    missing_left : (n_node,) bool
        Where bags go that know nothing of the feature.
    child : (n_node,) int32
        The left child; the right one is next to it.
    leaf : (n_node, n_class) float64
        Shares of the classes; in regression the mean of ``y`` comes first.
    gain : (n_node,) float64
        What the split took off the impurity, times the number of bags in the node.
    """
    n_bag, regression, absolute = offsets.size - 1, criterion == VARIANCE, variant == ABSOLUTE
    n_ratio = 2 if variant == RELIC else n_value
    most = 2 * n_bag - 1  # nodes
    feature, child = np.full(most, -1, np.int32), np.zeros(most, np.int32)
    value, ratio, gain = np.zeros(most), np.zeros(most), np.zeros(most)
    missing_left, leaf = np.zeros(most, np.bool_), np.zeros((most, n_class))

    # Room for the work on a node, made once.
    stream = np.empty(1, np.uint64)
    pool, chosen, swaps = (
        np.arange(x.shape[0]),
        np.empty(n_try, np.int64),
        np.empty(n_try, np.int64),
    )
    n_code = 0
    for f in range(x.shape[0]):
        n_code = max(n_code, n_category[f])
    seen = np.empty(n_code, np.int64)
    order, spare, sizes = np.arange(n_bag), np.empty(n_bag, np.int64), np.empty(n_bag, np.int64)
    values, known = np.empty(x.shape[1]), np.empty(n_bag, np.int64)
    counts, tally = np.empty((n_value, n_bag), np.int64), np.empty(n_value + 1, np.int64)
    drawn, cuts, cut_rank = np.empty(n_value), np.empty(n_value), np.empty(n_value, np.int64)
    shares, ratios, share_rank = np.empty(n_ratio), np.empty(n_ratio), np.empty(n_ratio, np.int64)
    places, above = np.empty(max(n_value, 2), np.int64), np.empty((n_ratio + 1, n_class))
    total, lost = np.empty(n_class), np.empty(n_class)
    left, right = np.empty(n_class), np.empty(n_class)

    n_log_n = np.zeros(n_bag + 1)  # logarithms would take half of a small node's time
    for k in range(1, n_bag + 1):
        n_log_n[k] = k * np.log(k)

    stack = np.empty((n_bag + 1, 3), np.int64)  # node, and the part of ``order`` that it holds
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, n_bag
    height, n_node = 1, 1
    while height > 0:
        height -= 1
        node, first, last = stack[height, 0], stack[height, 1], stack[height, 2]
        bags, n = order[first:last], last - first
        pure, largest = True, 0
        for c in range(n_class):
            total[c] = 0.0
        for a in range(n):
            sizes[a] = offsets[bags[a] + 1] - offsets[bags[a]]
            largest = max(largest, sizes[a])
            _add_bag(total, bags[a], label, y, regression)
            same = y[bags[a]] == y[bags[0]] if regression else label[bags[a]] == label[bags[0]]
            pure = pure and same
        for c in range(n_class):
            leaf[node, c] = total[c] / n
        if pure:
            continue

        own = _score(total, float(n), criterion, n_log_n)
        perfect = np.inf if regression else (float(n) if criterion == GINI else 0.0)
        best, found, splits, lost_left = -np.inf, False, False, False
        b_feature, b_value, b_ratio = 0, 0.0, 0.0
        # A stream for each node: what one node leaves undrawn does not change the others.
        stream[0] = _mix(seed + GOLDEN * np.uint64(node + 1))
        _choose_features(stream, pool, chosen, swaps)
        for f in chosen:
            if best >= perfect:
                break
            categorical = n_category[f] > 0
            low, high = _gather(x[f], offsets, bags, values)
            if not low < high:
                continue
            _draw_thresholds(stream, values, sizes, n, low, high, categorical, seen, drawn)
            _sort(drawn, cuts, cut_rank, places)
            _count(values, sizes, n, cuts, categorical, has_missing, tally, counts, known)
            n_lost = 0.0
            for c in range(n_class):
                lost[c] = 0.0
            for a in range(n if has_missing else 0):
                if known[a] == 0:
                    n_lost += 1.0
                    _add_bag(lost, bags[a], label, y, regression)
            for t in range(n_value):
                if best >= perfect:
                    break
                _draw_ratios(stream, variant, largest, shares)
                _sort(shares, ratios, share_rank, places)
                _place_shares(
                    counts[cut_rank[t]], known, bags, ratios, absolute, label, y, regression, above
                )
                for rule in range(n_ratio if n_lost == 0.0 else 2 * n_ratio):
                    j, lost_too = (rule, 0.0) if n_lost == 0.0 else (rule // 2, float(rule % 2))
                    n_left = 0.0
                    for c in range(n_class):
                        left[c] = above[share_rank[j] + 1, c] + lost_too * lost[c]
                        right[c] = total[c] - left[c]
                        n_left += left[c]
                    if regression:
                        n_left = left[1]
                    score = _score(left, n_left, criterion, n_log_n)
                    score += _score(right, n - n_left, criterion, n_log_n)
                    if not found or score > best + TIE * n:
                        found, best, splits = True, score, 0.0 < n_left < n
                        b_feature, b_value, b_ratio = f, drawn[t], shares[j]
                        lost_left = lost_too > 0.0 if n_lost > 0.0 else 2.0 * n_left > n
        if not splits:
            continue

        feature[node], value[node], ratio[node] = b_feature, b_value, b_ratio
        missing_left[node], child[node], gain[node] = lost_left, n_node, max(best - own, 0.0)
        n_left = _divide(
            x[b_feature],
            offsets,
            bags,
            spare,
            b_value,
            b_ratio,
            lost_left,
            n_category[b_feature] > 0,
            variant,
        )
        middle = first + n_left
        stack[height, 0], stack[height, 1], stack[height, 2] = n_node + 1, middle, last
        stack[height + 1, 0], stack[height + 1, 1], stack[height + 1, 2] = n_node, first, middle
        height += 2
        n_node += 2
    return feature, value, ratio, missing_left, child, leaf, gain, n_node


@compiled
def find_leaves(
    x, offsets, feature, value, ratio, missing_left, child, categorical, variant, found
):
    """Write the leaf that each bag falls into to ``found`` (n_bag,) int64.

    ``x`` (n_feat, n_pix) float64 and ``offsets`` are the bags; what the nodes ask is as
    :func:`grow_tree` returns it, but that a category is a value of ``x``; ``categorical`` (n_feat,)
    bool.
    """
    for bag in range(found.size):
        node = 0
        while feature[node] >= 0:
            f = feature[node]
            left = _goes_left(
                x[f],
                offsets[bag],
                offsets[bag + 1],
                value[node],
                ratio[node],
                missing_left[node],
                categorical[f],
                variant,
            )
            node = child[node] if left else child[node] + 1
        found[bag] = node
