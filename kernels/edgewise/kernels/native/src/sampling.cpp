// One token of a row of logits (kernels/sample.py says what each filter does and in which order), in float64.
//
// Of a filtered row few ids are left, and only those are raised to powers, sorted and added. Powers are computed here and not by
// the C library: additions and multiplications in one order, so that they have the same bits on every processor. Two borders are
// its logarithms all the same, that of min_p and that of a group's mass: another library, or its code for another processor, may
// give them another last bit, which matters to a token that lies on the border to that bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "abi.h"
#include "runtime.h"

using edgewise::kernels;

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr int32_t kStuck = -1;
constexpr int32_t kBlock = 512;   // ids whose mass is added side by side
constexpr int32_t kHeap = 1024;   // largest top_k that is gathered in one pass

// kernels/native/sample.py has the same fields.
struct Row {
  const float* logits;     // [count], the largest finite
  const int32_t* seen;     // [seen_count], each once
  const int32_t* counted;  // [counted_count], and how often
  const double* times;
  const int32_t* biased;   // [biased_count], and by how much
  const double* bias;
  const uint8_t* allowed;  // a bit of each id, or null
  const int32_t* banned;   // [banned_count]
  int64_t allowed_bytes;
  double temperature, top_p, min_p, uniform, repetition, presence, frequency;
  int32_t count, seen_count, counted_count, biased_count, banned_count, top_k;
  int32_t group_from;      // -1: no such rule
};

// A token that may be drawn, and its probability.
struct Likely {
  double p;
  int32_t id;
};

struct Scratch {
  std::vector<double> x, rest, mass;
  std::vector<int32_t> kept;
  std::vector<Likely> likely;
};

struct Loops {
  double (*largest_of)(const double*, int32_t);
  void (*widen)(const float*, int32_t, double*);
  void (*scale)(double*, int32_t, double, double);
  void (*powers)(const double*, int32_t, double*);
  double (*block_sum)(const double*, int32_t);
  int32_t (*at_least)(const double*, int32_t, double, int32_t*);
};

#define EDGEWISE_LOOPS baseline
#define EDGEWISE_LOOP static
#include "sampling_loops.inc.h"
#undef EDGEWISE_LOOPS
#undef EDGEWISE_LOOP
#if defined(__x86_64__)
#define EDGEWISE_LOOPS avx2
#define EDGEWISE_LOOP __attribute__((target("avx2"))) static
#include "sampling_loops.inc.h"
#undef EDGEWISE_LOOPS
#undef EDGEWISE_LOOP
#define EDGEWISE_LOOPS avx512
#define EDGEWISE_LOOP __attribute__((target("avx512f,avx512dq,avx512vl"))) static
#include "sampling_loops.inc.h"
#undef EDGEWISE_LOOPS
#undef EDGEWISE_LOOP
#endif

// Those of the instruction set in use.
const Loops& loops() {
#if defined(__x86_64__)
  if (std::strcmp(kernels().name, "avx512-vnni") == 0) return avx512::kLoops;
  if (std::strcmp(kernels().name, "avx2") == 0) return avx2::kLoops;
#endif
  return baseline::kLoops;
}

double total_of(const double* x, int32_t count) {
  double total = 0.0;
  for (int32_t at = 0; at < count; at += kBlock) total += loops().block_sum(x + at, std::min(kBlock, count - at));
  return total;
}

void adjust(const Row& row, Scratch& s) {
  s.x.resize(static_cast<size_t>(row.count));
  double* x = s.x.data();
  loops().widen(row.logits, row.count, x);
  for (int32_t i = 0; i < row.seen_count; ++i) {
    double& value = x[row.seen[i]];
    value = value > 0 ? value / row.repetition : value * row.repetition;
  }
  for (int32_t i = 0; i < row.counted_count; ++i) x[row.counted[i]] -= row.presence + row.frequency * row.times[i];
  for (int32_t i = 0; i < row.biased_count; ++i) x[row.biased[i]] += row.bias[i];
  for (int32_t i = 0; row.allowed != nullptr && i < row.count; ++i) {
    if (i / 8 >= row.allowed_bytes || (row.allowed[i / 8] >> (i % 8) & 1) == 0) x[i] = kNothing;
  }
  if (row.banned_count > 0) {
    s.rest = s.x;
    for (int32_t i = 0; i < row.banned_count; ++i) s.rest[row.banned[i]] = kNothing;
    if (row.allowed == nullptr || loops().largest_of(s.rest.data(), row.count) > kNothing) s.x.swap(s.rest);
  }
}

// Ids from `group_from` on alone, where together they are likelier than the likeliest before them.
void keep_group(const Row& row, Scratch& s) {
  double* group = s.x.data() + row.group_from;
  const int32_t count = row.count - row.group_from;
  const double most = loops().largest_of(group, count);
  if (most == kNothing) return;
  s.rest.resize(static_cast<size_t>(count));
  s.mass.resize(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) s.rest[i] = group[i] - most;
  loops().powers(s.rest.data(), count, s.mass.data());
  if (most + std::log(total_of(s.mass.data(), count)) > loops().largest_of(s.x.data(), row.group_from)) {
    std::fill(s.x.data(), group, kNothing);
  }
}

// The ids of the k largest, of equals at the border the lowest; without those of no probability.
void keep_top_k(const double* x, int32_t count, int32_t k, std::vector<int32_t>& kept) {
  const auto before = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  kept.clear();
  if (k > kHeap) {
    for (int32_t i = 0; i < count; ++i) {
      if (x[i] > kNothing) kept.push_back(i);
    }
    if (static_cast<int32_t>(kept.size()) > k) {
      std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), before);
      kept.resize(static_cast<size_t>(k));
    }
    return;
  }
  double border = kNothing;  // what a new one must be above; ids come in ascending order, so an equal one stays out
  for (int32_t i = 0; i < count; ++i) {
    if (!(x[i] > border)) continue;
    if (static_cast<int32_t>(kept.size()) == k) {
      std::pop_heap(kept.begin(), kept.end(), before);
      kept.back() = i;
    } else {
      kept.push_back(i);
    }
    std::push_heap(kept.begin(), kept.end(), before);
    if (static_cast<int32_t>(kept.size()) == k) border = x[kept.front()];
  }
}

// Leaves in `kept` the smallest set of the likeliest whose mass reaches top_p, of all ids or (`some`) of those that are kept.
void keep_top_p(const Row& row, bool some, Scratch& s) {
  const double* x = s.x.data();
  int32_t count = row.count;
  if (some) {
    count = static_cast<int32_t>(s.kept.size());
    s.rest.resize(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) s.rest[i] = s.x[s.kept[i]];
    x = s.rest.data();
  }
  s.mass.resize(static_cast<size_t>(count));
  loops().powers(x, count, s.mass.data());
  const double total = total_of(s.mass.data(), count), least = (1.0 - row.top_p) / row.count;
  // Those below `least` together weigh less than 1 - top_p, so none of them is in the set. A little less is asked for here, since
  // what is compared is the quotient.
  std::vector<int32_t> places(static_cast<size_t>(count) + 8);
  places.resize(static_cast<size_t>(loops().at_least(s.mass.data(), count, least * total * 0.999, places.data())));
  s.likely.clear();
  for (const int32_t place : places) {
    const double p = s.mass[place] / total;
    if (p >= least) s.likely.push_back({p, some ? s.kept[place] : place});
  }
  const auto after = [](const Likely& a, const Likely& b) { return a.p < b.p || (a.p == b.p && a.id > b.id); };
  std::make_heap(s.likely.begin(), s.likely.end(), after);
  s.kept.clear();
  double sum = 0.0;
  for (auto end = s.likely.end(); end != s.likely.begin();) {
    std::pop_heap(s.likely.begin(), end, after);
    const Likely& next = *--end;
    sum += next.p;
    if (sum - next.p >= row.top_p) break;
    s.kept.push_back(next.id);
  }
}

// The first id at which the mass of ids up to it is above the target. All ids.
int32_t draw_from_all(const Row& row, Scratch& s) {
  s.mass.resize(static_cast<size_t>(row.count));
  loops().powers(s.x.data(), row.count, s.mass.data());
  const double target = row.uniform * total_of(s.mass.data(), row.count);
  double mass = 0.0;
  int32_t last = kStuck;
  for (int32_t at = 0; at < row.count; at += kBlock) {
    const int32_t count = std::min(kBlock, row.count - at);
    const double own = loops().block_sum(s.mass.data() + at, count);
    const bool here = mass + own > target;
    double sum = mass;
    for (int32_t i = at; i < at + count; ++i) {
      if (s.mass[i] > 0.0) last = i;
      if (!here) continue;
      sum += s.mass[i];
      if (sum > target) return i;
    }
    if (here) return last;
    mass += own;
  }
  return last;
}

// The same of the ids that are kept.
int32_t draw_from_some(const Row& row, Scratch& s) {
  std::sort(s.kept.begin(), s.kept.end());
  const int32_t count = static_cast<int32_t>(s.kept.size());
  s.rest.resize(static_cast<size_t>(count));
  s.mass.resize(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) s.rest[i] = s.x[s.kept[i]];
  loops().powers(s.rest.data(), count, s.mass.data());
  double total = 0.0;
  for (int32_t i = 0; i < count; ++i) total += s.mass[i];
  const double target = row.uniform * total;
  double mass = 0.0;
  for (int32_t i = 0; i < count; ++i) {
    mass += s.mass[i];
    if (mass > target) return s.kept[i];
  }
  return count == 0 ? kStuck : s.kept[count - 1];
}

int32_t draw(const Row& row, Scratch& s) {
  adjust(row, s);
  if (row.group_from > 0) keep_group(row, s);
  double* x = s.x.data();
  const double most = loops().largest_of(x, row.count);
  if (most == kNothing) return kStuck;
  if (row.temperature == 0.0) return static_cast<int32_t>(std::find(x, x + row.count, most) - x);
  loops().scale(x, row.count, most, row.temperature);
  bool some = row.top_k > 0 && row.top_k < row.count;
  if (some) {
    keep_top_k(x, row.count, row.top_k, s.kept);
    std::sort(s.kept.begin(), s.kept.end());
  }
  if (row.top_p < 1.0) {
    keep_top_p(row, some, s);
    some = true;
  }
  if (row.min_p > 0.0) {
    const double least = std::log(row.min_p);  // the largest is exactly 0 here
    if (some) {
      s.kept.erase(std::remove_if(s.kept.begin(), s.kept.end(), [&](int32_t id) { return x[id] < least; }), s.kept.end());
    } else {
      s.kept.resize(static_cast<size_t>(row.count) + 8);
      s.kept.resize(static_cast<size_t>(loops().at_least(x, row.count, least, s.kept.data())));
      some = true;
    }
  }
  return some ? draw_from_some(row, s) : draw_from_all(row, s);
}

}  // namespace

// A token of each row, or -1 where nothing may be drawn. Ids in rows are checked by the caller. 0, or kNoMemory.
EDGEWISE_EXPORT int32_t edgewise_draw(const Row* rows, int32_t count, int32_t* tokens) {
  static thread_local Scratch scratch;  // kept: fresh memory costs more than a draw
  try {
    for (int32_t i = 0; i < count; ++i) tokens[i] = draw(rows[i], scratch);
    return 0;
  } catch (const std::bad_alloc&) {
    return edgewise::kNoMemory;
  }
}
