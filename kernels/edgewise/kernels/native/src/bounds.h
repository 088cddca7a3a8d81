// What a batch says is checked once a call, before any of it is an address: a wrong table can then neither read nor write outside
// the pages. Costs under a microsecond for a thousand pages.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace edgewise {

// What can be wrong with a batch; numbers are part of the ABI (kernels/native/faults.py).
enum class Fault : int32_t {
  kNone = 0,
  kToken = 1,         // outside the vocabulary
  kPosition = 2,      // outside the block table
  kLengths = 3,       // query lengths are not positive, or do not add up to the tokens
  kMedia = 4,         // a media row is no token of the batch
  kSlot = 5,          // outside the pages
  kTable = 6,         // a page within a sequence's context is none of the cache's
  kVisible = 7,       // outside the block table, or before the window
  kRopePosition = 8,  // outside the rope table
  kPages = 9,         // not of the model's heads
  kAdapter = 10,      // a token's adapter is none of the batch's
};

// Which tokens of a ragged batch see which pages; as kernels/paging.py:AttentionMeta.
struct Layout {
  int64_t tokens;
  int32_t sequences, table_width;
  const int64_t* positions;     // [tokens]
  const int64_t* visible;       // [tokens], or null: `positions`
  const int32_t* block_tables;  // [sequences, table_width]
  const int32_t* query_lens;    // [sequences]
};

// Lengths, positions, what is visible, and the pages of a table that some token sees; entries beyond are not looked at. `window`:
// the smallest there is, 0 for none. `pages`: of the cache.
Fault check_layout(const Layout&, int32_t window, int64_t pages);
// Places of new tokens [tokens].
Fault check_slots(const int64_t* slots, int64_t tokens, int64_t pages);

}  // namespace edgewise
