"""Bag-level randomized trees: growing one, and asking one, compiled.

The paper's rules are up to ``K T T`` a node; scanning the node's instances for each of them costs
``K T T N_I``. Here each value is placed among the sorted thresholds once, which gives every bag's
counts for all thresholds together; and each bag's share is placed among the sorted ratios once,
which gives both sides' class counts for all ratios together. Rules are still scored in the order in
which they were drawn: of equal ones the first is kept, as in Algorithm 1.
"""

from __future__ import annotations

import numpy as np

from models.mil.trees.bag_bins import (
    N_GROUP,
    N_SHARE,
    PACK,
    SMALL_BAG,
    WIDE,
    compiled,
    count_above,
    place_bags,
    range_of,
)
from models.mil.trees.bag_split import ABSOLUTE, RELIC, count_one, divide

GINI, ENTROPY, VARIANCE = 0, 1, 2
ALL_BUT = 1.0 - 2.0**-53  # the ratio that only "all instances" exceeds
TIE = 1e-12  # scores that differ by less than this a bag are equal: rounding must not decide

GOLDEN, MIX_1, MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
S30, S27, S31, S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


# mypy: disable-error-code="no-untyped-def"
# Types below are numba's: float64 and int64 scalars, arrays as grow_tree names them. Loops stand
# where NumPy would have slices: they compile in half the time, and run as fast. What is done for
# each bag or each rule calls no function with arrays: numba counts the references to each of them,
# with a locked instruction, before and after such a call.


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
def _sort(drawn, held, rank):
    """Put ``drawn`` in order into ``held``; ``rank`` is where each of them went."""
    for i in range(drawn.size):
        k = 0
        for j in range(i):
            k += drawn[j] <= drawn[i]
        for j in range(i + 1, drawn.size):
            k += drawn[j] < drawn[i]
        held[k], rank[i] = drawn[i], k


@compiled
def _purity(total, n, n_log, criterion):
    """Score one side of a split: the purer, the higher. The two sides add.

    With ``n_c`` bags of class ``c``: ``sum n_c^2 / n`` is ``n`` less ``n`` times the Gini impurity,
    ``sum n_c log(n_c / n)`` is ``-n`` times the entropy, ``(sum y)^2 / n`` is the sum of squares
    less ``n`` times the variance. ``total`` is the sum over the classes, ``n_log`` is ``n log n``.
    """
    if n <= 0.0:
        return 0.0
    return total - n_log if criterion == ENTROPY else total / n


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
        if regression:
            above[k, 0] += y[bags[a]]
            above[k, 1] += 1.0
        else:
            above[k, label[bags[a]]] += 1.0
    for k in range(above.shape[0] - 2, -1, -1):
        for c in range(above.shape[1]):
            above[k, c] += above[k + 1, c]


@compiled
def grow_tree(
    x,
    offsets,
    label,
    y,
    n_class,
    criterion,
    variant,
    n_category,
    has_missing,
    codes,
    edges,
    ranges,
    n_try,
    n_value,
    seed,
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
    codes : (n_feat, n_pix) uint16
    edges : (n_feat, 4095) float64
        Bins of the values: :func:`value_bins.bin_values`. Not read if ``has_missing``.
    ranges : (n_feat, n_bag, 2) float64
        Lowest and highest value in each bag. Not read if ``has_missing``.
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
    found_in : (n_bag,) int32
        The leaf of each bag.
    """
    n_bag, regression, absolute = offsets.size - 1, criterion == VARIANCE, variant == ABSOLUTE
    n_ratio = 2 if variant == RELIC else n_value
    most = 2 * n_bag - 1  # nodes
    feature, child = np.full(most, -1, np.int32), np.zeros(most, np.int32)
    value, ratio, gain = np.zeros(most), np.zeros(most), np.zeros(most)
    missing_left, leaf = np.zeros(most, np.bool_), np.zeros((most, n_class))
    found_in = np.empty(n_bag, np.int32)

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
    # Ratios and sums of each threshold, in the order of the sorted thresholds.
    shares, ratios = np.empty((n_value, n_ratio)), np.empty((n_value, n_ratio))
    share_rank = np.empty((n_value, n_ratio), np.int64)
    above = np.empty((n_value, n_ratio + 1, n_class))
    table, hits = np.empty(N_GROUP, np.uint64), np.empty(PACK, np.int64)
    cut_codes = np.empty(PACK, np.uint16)
    share_places, filled = np.empty(n_value * N_SHARE, np.uint32), np.empty(SMALL_BAG + 1, np.bool_)
    total, lost = np.empty(n_class), np.empty(n_class)

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
            found_in[bags[a]] = node
            if regression:
                total[0] += y[bags[a]]
                total[1] += 1.0
                pure = pure and y[bags[a]] == y[bags[0]]
            else:
                total[label[bags[a]]] += 1.0
                pure = pure and label[bags[a]] == label[bags[0]]
        for c in range(n_class):
            leaf[node, c] = total[c] / n
        if pure:
            continue

        own = 0.0
        for c in range(1 if regression else n_class):
            own += n_log_n[int(total[c])] if criterion == ENTROPY else total[c] * total[c]
        own = _purity(own, float(n), n_log_n[n], criterion)
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
            wide = n >= WIDE and not (has_missing or categorical)
            if wide:
                low, high = range_of(ranges[f], bags)
            else:
                low, high = _gather(x[f], offsets, bags, values)
            if not low < high:
                continue
            _draw_thresholds(stream, values, sizes, n, low, high, categorical, seen, drawn)
            _sort(drawn, cuts, cut_rank)
            if wide:
                for t in range(n_value):
                    k = cut_rank[t]
                    _draw_ratios(stream, variant, largest, shares[k])
                    _sort(shares[k], ratios[k], share_rank[k])
                place_bags(
                    x[f],
                    codes[f],
                    offsets,
                    bags,
                    cuts,
                    ratios,
                    absolute,
                    label,
                    y,
                    regression,
                    edges[f],
                    table,
                    cut_codes,
                    hits,
                    share_places,
                    filled,
                    above,
                )
            else:
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
                k = cut_rank[t]
                if not wide:
                    _draw_ratios(stream, variant, largest, shares[k])
                    _sort(shares[k], ratios[k], share_rank[k])
                    _place_shares(
                        counts[k],
                        known,
                        bags,
                        ratios[k],
                        absolute,
                        label,
                        y,
                        regression,
                        above[k],
                    )
                for rule in range(n_ratio if n_lost == 0.0 else 2 * n_ratio):
                    j, lost_too = (rule, 0.0) if n_lost == 0.0 else (rule // 2, float(rule % 2))
                    place = share_rank[k, j] + 1
                    n_left, on_left, on_right = 0.0, 0.0, 0.0
                    for c in range(n_class):
                        left = above[k, place, c] + lost_too * lost[c]
                        right = total[c] - left
                        if regression:
                            n_left = left
                            if c == 0:
                                on_left, on_right = left * left, right * right
                            continue
                        n_left += left
                        if criterion == ENTROPY:
                            on_left += n_log_n[int(left)]
                            on_right += n_log_n[int(right)]
                        else:
                            on_left += left * left
                            on_right += right * right
                    score = _purity(on_left, n_left, n_log_n[int(n_left)], criterion)
                    score += _purity(on_right, n - n_left, n_log_n[n - int(n_left)], criterion)
                    if not found or score > best + TIE * n:
                        found, best, splits = True, score, 0.0 < n_left < n
                        b_feature, b_value, b_ratio = f, drawn[t], shares[k, j]
                        lost_left = lost_too > 0.0 if n_lost > 0.0 else 2.0 * n_left > n
        if not splits:
            continue

        feature[node], value[node], ratio[node] = b_feature, b_value, b_ratio
        missing_left[node], child[node], gain[node] = lost_left, n_node, max(best - own, 0.0)
        row, categorical = x[b_feature], n_category[b_feature] > 0
        if n >= WIDE and not (has_missing or categorical):
            count_above(row, codes[b_feature], edges[b_feature], offsets, bags, b_value, counts[0])
            known[:n] = sizes[:n]
        else:
            count_one(row, offsets, bags, b_value, categorical, has_missing, counts[0], known)
        n_left = divide(bags, counts[0], known, spare, b_ratio, lost_left, variant)
        middle = first + n_left
        stack[height, 0], stack[height, 1], stack[height, 2] = n_node + 1, middle, last
        stack[height + 1, 0], stack[height + 1, 1], stack[height + 1, 2] = n_node, first, middle
        height += 2
        n_node += 2
    return feature, value, ratio, missing_left, child, leaf, gain, found_in, n_node
