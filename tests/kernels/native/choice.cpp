// Prints which instruction sets fit processors with all, and with all but one, of the bits that dispatch.cpp looks at.
#include <cstdio>

namespace edgewise {
bool fits_avx512(unsigned has);
bool fits_avx2(unsigned has);
}  // namespace edgewise

int main() {
  const char* names[] = {"avx2", "fma", "f16c", "avx512", "vnni"};
  std::printf("none %d %d\n", edgewise::fits_avx512(31u), edgewise::fits_avx2(31u));
  for (unsigned bit = 0; bit < 5; ++bit) {
    std::printf("%s %d %d\n", names[bit], edgewise::fits_avx512(31u & ~(1u << bit)), edgewise::fits_avx2(31u & ~(1u << bit)));
  }
  return 0;
}
