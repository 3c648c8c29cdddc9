// sinpe_add against a plain loop: shapes, strides, positions, masks, dtypes, in place, dropout.
#include <cmath>
#include <initializer_list>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "plans.h"
#include "sinpe/sinpe.h"

namespace {

struct Case {
  int64_t batch, middle, rows, dim;
  bool channels_first, explicit_positions, starts, masked, in_place;
  int32_t drop = 0;
  bool numbered = false;  // elements with explicit numbers
  int layout = 0;
  bool own = false;  // separate frequencies of the cosines
};

template <class T>
void run(const Case& c) {
  const TestPlan made = make_plan(c.dim, c.layout, c.own);
  const int64_t total = c.batch * c.middle * c.rows * c.dim;
  check::Random random;
  std::vector<T> x(static_cast<size_t>(total)), out(static_cast<size_t>(total));
  for (T& value : x) sinpe::round_store(&value, static_cast<float>(random.uniform() * 8 - 4));
  std::vector<int64_t> positions(static_cast<size_t>(c.batch * c.rows));
  for (int64_t& p : positions) p = static_cast<int64_t>(random.next() % 100000);
  std::vector<uint8_t> mask(static_cast<size_t>(c.batch * c.rows));
  for (uint8_t& m : mask) m = random.next() % 3 == 0;

  sinpe_add_arguments a{};
  a.rank = 4;
  const int64_t sizes[] = {c.batch, c.middle, c.rows, c.dim};
  // Contiguous rows, or channels outside of rows as in (batch, channels, sequence).
  const int64_t row_stride = c.channels_first ? 1 : c.dim, channel_stride = c.channels_first ? c.rows : 1;
  const int64_t strides[] = {c.middle * c.rows * c.dim, c.rows * c.dim, row_stride, channel_stride};
  for (int d = 0; d < 4; ++d) {
    a.sizes[d] = sizes[d];
    a.x_strides[d] = a.out_strides[d] = strides[d];
  }
  const std::vector<T> before = x;
  a.x = x.data();
  a.out = c.in_place ? x.data() : out.data();
  a.dtype = dtype_of<T>();
  a.scale = 1.7;
  a.alpha = -0.3;
  a.start = 12345;
  if (c.explicit_positions || c.starts) {
    a.positions = positions.data();
    a.position_dtype = SINPE_INT64;
    a.positions_are_starts = c.starts;
    a.position_strides[0] = c.starts ? 1 : c.rows;
    a.position_strides[1] = c.starts ? 0 : 1;
  }
  if (c.masked) {
    a.padding_mask = mask.data();
    a.mask_strides[0] = c.rows;
    a.mask_strides[1] = 1;
  }
  // The element numbers of a tensor with the layout of x, or of a shard of a larger tensor.
  const int64_t row_major[] = {c.middle * c.rows * c.dim, c.rows * c.dim, c.dim, 1};
  const int64_t shard[] = {(int64_t{1} << 36) + 5, 3 * strides[0], strides[1], strides[2], strides[3]};
  a.dropout.drop_threshold = c.drop;
  a.dropout.seed = -12345678901;
  a.dropout.rng_offsets = c.numbered ? shard : nullptr;
  CHECK(sinpe_add(made.words.data(), static_cast<int64_t>(made.words.size()), &a) == SINPE_OK);
  const T* got = static_cast<const T*>(a.out);
  const float scale = 1.7f, alpha = -0.3f;
  std::vector<float> row(static_cast<size_t>(c.dim));
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t s = 0; s < c.rows; ++s) {
      int64_t p = 12345 + s;
      if (c.starts) p = positions[static_cast<size_t>(b)] + s;
      if (c.explicit_positions) p = positions[static_cast<size_t>(b * c.rows + s)];
      sinpe::exact_row(made.plan, sinpe::integer_position(p), row.data());
      const bool padded = c.masked && mask[static_cast<size_t>(b * c.rows + s)] != 0;
      for (int64_t m = 0; m < c.middle; ++m) {
        for (int64_t d = 0; d < c.dim; ++d) {
          const size_t at = static_cast<size_t>(b * strides[0] + m * strides[1] + s * row_stride + d * channel_stride);
          const float product = sinpe::to_float(before[at]) * scale;
          const float encoded = row[static_cast<size_t>(d)] * alpha;
          const int64_t* steps = c.numbered ? shard + 1 : row_major;
          const int64_t number =
              (c.numbered ? shard[0] : 0) + b * steps[0] + m * steps[1] + s * steps[2] + d * steps[3];
          const float sum = padded ? product : product + encoded;
          CHECK(same(got[at], dropped<T>(sum, a.dropout, static_cast<uint64_t>(number))));
        }
      }
    }
  }
}

void test_invalid_arguments() {
  const TestPlan made = make_plan(4, 0, false);
  float x[4] = {};
  sinpe_add_arguments a{};
  a.rank = 2;
  a.sizes[0] = 1;
  a.sizes[1] = a.x_strides[0] = a.out_strides[0] = 4;
  a.x_strides[1] = a.out_strides[1] = 1;
  a.x = a.out = x;
  a.scale = a.alpha = 1.0;
  const int64_t words = static_cast<int64_t>(made.words.size());
  CHECK(sinpe_add(made.words.data(), words, &a) == SINPE_OK);
  for (int32_t drop : {-1, 65537}) {
    a.dropout.drop_threshold = drop;
    CHECK(sinpe_add(made.words.data(), words, &a) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe_dropout(&a) == SINPE_BAD_ARGUMENT);
  }
  a.dropout.drop_threshold = 9000;
  for (const int64_t step : {int64_t{-1}, int64_t{1} << 61, INT64_MAX}) {  // numbers beyond int64
    const int64_t elements[] = {INT64_MAX, 4, step};
    a.dropout.rng_offsets = elements;
    CHECK(sinpe_add(made.words.data(), words, &a) == SINPE_BAD_ARGUMENT);
    CHECK(sinpe_dropout(&a) == SINPE_BAD_ARGUMENT);
  }
  a.dropout.rng_offsets = nullptr;
  a.dropout.drop_threshold = 0;
  a.rank = 0;
  CHECK(sinpe_dropout(&a) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_dropout(nullptr) == SINPE_BAD_ARGUMENT);
}

}  // namespace

int main() {
  for (bool channels_first : {false, true}) {
    for (bool in_place : {false, true}) {
      for (bool masked : {false, true}) {
        for (int mode : {0, 1, 2}) {
          for (int64_t dim : {5, 32}) {
            for (int32_t drop : {0, 6554, 65536}) {
              const Case c{3, 2, 41, dim, channels_first, mode == 1, mode == 2, masked, in_place, drop, mode == 2};
              run<float>(c);
              run<sinpe::bfloat16>(c);
              run<sinpe::float16>(c);
            }
          }
        }
      }
    }
  }
  // One sequence, or one per start: rows are computed when they are needed, in pieces of up to 1,024 channels.
  for (int layout : {0, 1, 2}) {
    for (bool own : {false, true}) {
      for (int64_t dim : {5, 130, 301}) {
        for (int32_t drop : {0, 6554}) {
          for (bool starts : {false, true}) {
            const Case c{starts ? 2 : 1, 1,          21,   dim,    false,  false, starts,
                         false,          dim == 301, drop, starts, layout, own};
            run<float>(c);
            run<sinpe::bfloat16>(c);
            run<sinpe::float16>(c);
          }
        }
      }
      run<float>({1, 1, 300, 150, false, false, false, false, true, 0, false, layout, own});  // more than one anchor
      for (int32_t drop : {0, 6554}) {
        run<float>({1, 1, 9, 2101, false, false, false, false, false, drop, false, layout, own});  // three pieces
        run<sinpe::bfloat16>({1, 1, 9, 2101, false, false, false, false, false, drop, false, layout, own});
      }
    }
  }
  run<float>({2000, 1, 1, 64, false, false, false, false, false});  // one row: threads share the batch
  for (int64_t batch = 4; batch < 10; ++batch) run<float>({batch, 1, 41, 32, false, false, false, false, true});
  run<float>({1, 1, 3000, 64, false, false, false, false, true, 32768});
  run<float>({5, 1, 70, 512, false, false, false, false, true, 1, true});
  test_invalid_arguments();
  return check::finish("test_add");
}
