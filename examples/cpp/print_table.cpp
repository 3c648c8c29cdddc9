// The first ten rows of the paper's encoding with six channels, printed by a C++ program: neither Python nor torch runs.
#include <sinpe/sinpe.h>

#include <cstdio>
#include <vector>

#include "paper6.h"

int main() {
  const int64_t rows = 10;
  std::vector<float> table(rows * paper6_dim);
  const sinpe_status status =
      sinpe_table(paper6, paper6_words, /*start=*/0, rows, SINPE_FLOAT32, table.data(), /*row_stride=*/paper6_dim);
  if (status != SINPE_OK) {
    std::fprintf(stderr, "sinpe_table: %s\n", sinpe_status_text(status));
    return 1;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int channel = 0; channel < paper6_dim; ++channel) {
      std::printf("%s%7.4f", channel == 0 ? "" : ", ", table[row * paper6_dim + channel]);
    }
    std::printf("\n");
  }
  return 0;
}
