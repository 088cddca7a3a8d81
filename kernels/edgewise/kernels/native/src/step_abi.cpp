// A decoder's forward pass for Python (models/decoder/native). Structs are those of step.h, plan.h and kernels.h, field by field.
#include <new>

#include "abi.h"
#include "step.h"

using edgewise::kNoMemory;

// Null if there is no memory.
EDGEWISE_EXPORT edgewise::Decoder* edgewise_decoder_new(const edgewise::ModelShape* shape, const edgewise::LayerWeights* layers,
                                                        const edgewise::RopeTable* ropes, const edgewise::Matrix* embedding,
                                                        const edgewise::Matrix* head, const float* norm) {
  try {
    return new edgewise::Decoder(*shape, layers, ropes, *embedding, *head, norm);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

EDGEWISE_EXPORT void edgewise_decoder_free(edgewise::Decoder* decoder) { delete decoder; }

// A `Fault`, 0 if the batch was computed; kNoMemory. Not for two threads at once, of any decoders.
EDGEWISE_EXPORT int32_t edgewise_decoder_forward(edgewise::Decoder* decoder, const edgewise::Batch* batch,
                                                 const edgewise::KVPages* kv, float* hidden) {
  try {
    return static_cast<int32_t>(decoder->forward(*batch, kv, hidden));
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// 0, or kNoMemory.
EDGEWISE_EXPORT int32_t edgewise_decoder_logits(edgewise::Decoder* decoder, const float* hidden, int32_t rows, float* logits) {
  try {
    decoder->logits(hidden, rows, logits);
    return 0;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

EDGEWISE_EXPORT int64_t edgewise_decoder_workspace(const edgewise::Decoder* decoder) { return decoder->workspace_bytes(); }
