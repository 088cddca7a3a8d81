// Operations on one row of floats: norm, rotation, soft cap, storing keys and values, the largest logit.
#pragma once

#include "float16.h"

namespace edgewise {
namespace EDGEWISE_ISA_NAMESPACE {
namespace {

// 1 / sqrt(mean(x^2) + eps)
float rms_scale(const float* x, int32_t cols, float eps) {
  Floats total = splat(0.0f);
  for (int32_t i = 0; i < cols; i += kLanes) {
    const Floats part = load_part(x + i, cols - i < kLanes ? cols - i : kLanes);
    total = fma(part, part, total);
  }
  return 1.0f / ::sqrtf(sum(total) / static_cast<float>(cols) + eps);
}

void rms_norm(const float* x, const float* weight, float eps, int32_t cols, float* out) {
  const Floats scale = splat(rms_scale(x, cols, eps));
  for (int32_t i = 0; i < cols; i += kLanes) {
    const int count = cols - i < kLanes ? cols - i : kLanes;
    store_part(out + i, load_part(x + i, count) * scale * load_part(weight + i, count), count);
  }
}

// Products and sums stay separate, as in kernels/reference/rope.py: the same bits.
void rope(float* head, const float* cos, const float* sin, int32_t half) {
  for (int32_t i = 0; i < half; i += kLanes) {
    const int count = half - i < kLanes ? half - i : kLanes;
    const Floats x = load_part(head + i, count), y = load_part(head + half + i, count);
    const Floats c = load_part(cos + i, count), s = load_part(sin + i, count);
    store_part(head + i, x * c - y * s, count);
    store_part(head + half + i, y * c + x * s, count);
  }
}

void softcap(float* x, int64_t count, float cap) {
  const Floats limit = splat(cap);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int part = count - i < kLanes ? static_cast<int>(count - i) : kLanes;
    store_part(x + i, tanh(load_part(x + i, part) / limit) * limit, part);
  }
}

// |x| <= 448 (e4m3fn has no infinity); half to even.
EDGEWISE_INLINE uint8_t to_fp8(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu;
  if (rest < 0x3c800000u) {  // below the least normal number, 2^-6: adding 2^14 rounds to multiples of 2^-9
    return static_cast<uint8_t>(sign | (float_bits(float_of_bits(rest) + 0x1p14f) - 0x46800000u));
  }
  return static_cast<uint8_t>(sign | (rest - 0x3c000000u + 0x7ffffu + (rest >> 20 & 1u)) >> 20);
}

// max|x| / most; NaN if a value is NaN or infinite, so that the fault stays visible.
float storage_scale(const float* x, int32_t count, float most) {
  Floats largest = splat(0.0f), fault = splat(0.0f);  // a number less itself is 0, or NaN if it is infinite or NaN
  for (int32_t i = 0; i < count; i += kLanes) {
    const Floats part = load_part(x + i, count - i < kLanes ? count - i : kLanes);
    largest = max(largest, abs(part));
    fault = fault + (part - part);
  }
  return maximum(largest) / most + sum(fault);
}

// Codes of a row with a scale; all 0 where the scale is NaN.
void write_scaled(const float* x, int32_t count, KVFormat format, uint8_t* to, float* scale_out) {
  const float most = format == KVFormat::kInt8 ? 127.0f : 448.0f;
  const float scale = storage_scale(x, count, most);
  *scale_out = scale;
  if (scale != scale) {
    std::memset(to, 0, static_cast<size_t>(count));
    return;
  }
  const Floats divisor = splat(scale == 0.0f ? 1.0f : scale), high = splat(most), low = splat(-most);
  for (int32_t i = 0; i < count; i += kLanes) {
    const int part = count - i < kLanes ? count - i : kLanes;
    const Floats values = max(min(load_part(x + i, part) / divisor, high), low);
    uint8_t codes[kLanes];
    if (format == KVFormat::kInt8) {
      store_int8(reinterpret_cast<int8_t*>(codes), round(values));
    } else {
      float each[kLanes];
      store(each, values);
      for (int lane = 0; lane < kLanes; ++lane) codes[lane] = to_fp8(each[lane]);
    }
    std::memcpy(to + i, codes, static_cast<size_t>(part));
  }
}

void write_row(const float* x, int32_t count, KVFormat format, void* pages, float* scales, int64_t row) {
  const int64_t at = row * count;
  switch (format) {
    case KVFormat::kFloat32:
      std::memcpy(static_cast<float*>(pages) + at, x, sizeof(float) * static_cast<size_t>(count));
      break;
    case KVFormat::kBFloat16:
      for (int32_t i = 0; i < count; ++i) static_cast<uint16_t*>(pages)[at + i] = to_bfloat16(x[i]);
      break;
    case KVFormat::kFloat16:
      for (int32_t i = 0; i < count; ++i) static_cast<uint16_t*>(pages)[at + i] = to_float16(x[i]);
      break;
    case KVFormat::kInt8:
    case KVFormat::kFp8:
      write_scaled(x, count, format, static_cast<uint8_t*>(pages) + at, scales + row);
      break;
  }
}

void kv_write(const KVPages& kv, const float* k, const float* v, int64_t slot) {
  const int64_t page = slot / kPageTokens, offset = slot % kPageTokens;
  for (int32_t head = 0; head < kv.kv_heads; ++head) {
    const int64_t row = (page * kv.kv_heads + head) * kPageTokens + offset, from = static_cast<int64_t>(head) * kv.head_dim;
    write_row(k + from, kv.head_dim, kv.format, kv.k, kv.k_scale, row);
    write_row(v + from, kv.head_dim, kv.format, kv.v, kv.v_scale, row);
  }
}

int32_t argmax(const float* logits, int32_t count) {
  Floats largest = splat(-INFINITY), fault = splat(0.0f);
  int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats part = load(logits + i);
    largest = max(largest, part);
    fault = fault + part * splat(0.0f);  // NaN for NaN, and for infinities, which are looked at one by one below
  }
  float most = maximum(largest);
  bool odd = sum(fault) != 0.0f;
  for (; i < count; ++i) {
    odd = odd || logits[i] * 0.0f != 0.0f;
    most = logits[i] > most ? logits[i] : most;
  }
  if (odd) {
    for (int32_t at = 0; at < count; ++at) {
      if (logits[at] != logits[at]) return -1;
    }
  }
  if (!(::fabsf(most) < INFINITY)) return -1;
  constexpr int32_t kRun = 16 * kLanes;  // looked through at once for the first place of the largest
  int32_t at = 0;
  for (; at + kRun <= count; at += kRun) {
    largest = load(logits + at);
    for (int32_t j = kLanes; j < kRun; j += kLanes) largest = max(largest, load(logits + at + j));
    if (maximum(largest) == most) break;
  }
  while (logits[at] != most) ++at;
  return at;
}

}  // namespace
}  // namespace EDGEWISE_ISA_NAMESPACE
}  // namespace edgewise
