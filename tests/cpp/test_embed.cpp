// sinpe_embed against a plain loop: shapes, strides of ids and weight, masks, dropout, dtypes; ids out of range.
#include <cmath>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "plans.h"

namespace {

constexpr int64_t kRows = 37;  // of the weight

struct Case {
  int64_t batch, middle, sequence, dim;
  bool ids_transposed, masked, positions;
  int32_t drop;
  bool numbered;
};

struct Call {
  sinpe_embed_arguments e{};
  std::vector<int64_t> ids, positions;
  std::vector<uint8_t> mask;
  std::vector<int64_t> elements;

  Call(const Case& c, check::Random& random) {
    const int64_t tokens = c.batch * c.middle * c.sequence;
    for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int64_t>(random.next() % kRows));
    for (int64_t k = 0; k < c.batch * c.sequence; ++k) {
      positions.push_back(static_cast<int64_t>(random.next() % 100000));
      mask.push_back(random.next() % 3 == 0);
    }
    sinpe_add_arguments& a = e.add;
    const int64_t sizes[] = {c.batch, c.middle, c.sequence, c.dim};
    const int64_t strides[] = {c.middle * c.sequence * c.dim, c.sequence * c.dim, c.dim, 1};
    a.rank = 4;
    for (int d = 0; d < 4; ++d) {
      a.sizes[d] = sizes[d];
      a.out_strides[d] = strides[d];
    }
    e.id_strides[0] = c.ids_transposed ? 1 : c.middle * c.sequence;
    e.id_strides[1] = c.ids_transposed ? c.batch * c.sequence : c.sequence;
    e.id_strides[2] = c.ids_transposed ? c.batch : 1;
    a.scale = 1.7;
    a.alpha = -0.3;
    a.start = 77;
    if (c.positions) {
      a.positions = positions.data();
      a.position_dtype = SINPE_INT64;
      a.position_strides[0] = c.sequence;
      a.position_strides[1] = 1;
    }
    if (c.masked) {
      a.padding_mask = mask.data();
      a.mask_strides[0] = c.sequence;
      a.mask_strides[1] = 1;
    }
    a.dropout.drop_threshold = c.drop;
    a.dropout.seed = 99;
    elements = {1000, 2 * strides[0], strides[1], strides[2] + 3, 1};
    if (c.numbered) a.dropout.rng_offsets = elements.data();
    e.ids = ids.data();
    e.num_embeddings = kRows;
    e.weight_stride = c.dim + 2;
  }
};

template <class T>
void run(const Case& c) {
  const TestPlan made = make_plan(c.dim, 1, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  check::Random random;
  Call call(c, random);
  sinpe_embed_arguments& e = call.e;
  std::vector<T> weight(static_cast<size_t>(kRows * e.weight_stride), rounded<T>(std::nanf("")));
  for (T& w : weight) w = rounded<T>(static_cast<float>(random.uniform() * 8 - 4));
  std::vector<T> out(static_cast<size_t>(c.batch * c.middle * c.sequence * c.dim), rounded<T>(std::nanf("")));
  e.add.x = weight.data();
  e.add.out = out.data();
  e.add.dtype = dtype_of<T>();
  CHECK(sinpe_embed(made.words.data(), words, &e) == SINPE_OK);
  std::vector<float> row(static_cast<size_t>(c.dim));
  const int64_t* steps = c.numbered ? call.elements.data() + 1 : e.add.out_strides;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t s = 0; s < c.sequence; ++s) {
      const size_t place = static_cast<size_t>(b * c.sequence + s);
      sinpe::exact_row(made.plan, sinpe::integer_position(c.positions ? call.positions[place] : 77 + s), row.data());
      for (int64_t m = 0; m < c.middle; ++m) {
        const int64_t id = e.ids[b * e.id_strides[0] + m * e.id_strides[1] + s * e.id_strides[2]];
        for (int64_t d = 0; d < c.dim; ++d) {
          float v = sinpe::to_float(weight[static_cast<size_t>(id * e.weight_stride + d)]) * 1.7f;
          if (!c.masked || call.mask[place] == 0) v = v + row[static_cast<size_t>(d)] * -0.3f;
          const int64_t number = (c.numbered ? 1000 : 0) + b * steps[0] + m * steps[1] + s * steps[2] + d * steps[3];
          const int64_t at = ((b * c.middle + m) * c.sequence + s) * c.dim + d;
          CHECK(same(out[static_cast<size_t>(at)], dropped<T>(v, e.add.dropout, static_cast<uint64_t>(number))));
        }
      }
    }
  }
}

void test_bad_ids() {
  const Case c{2, 1, 50, 8, false, false, false, 6554, false};
  const TestPlan made = make_plan(c.dim, 1, false);
  const int64_t words = static_cast<int64_t>(made.words.size());
  check::Random random;
  for (int64_t bad : {int64_t{-1}, kRows, INT64_MIN, INT64_MAX}) {
    Call call(c, random);
    call.ids[60] = bad;
    call.ids[99] = 1000;
    std::vector<float> weight(static_cast<size_t>(kRows * call.e.weight_stride), 1.0f), out(800, -5.0f);
    call.e.add.x = weight.data();
    call.e.add.out = out.data();
    CHECK(sinpe_embed(made.words.data(), words, &call.e) == SINPE_BAD_ID);
    CHECK(call.e.bad_id == bad);
    for (float x : out) CHECK(x == -5.0f);
  }
  Call none(c, random);  // weight without rows: valid only if there are no ids
  none.e.num_embeddings = 0;
  CHECK(sinpe_embed(made.words.data(), words, &none.e) == SINPE_BAD_ID);
  none.e.add.sizes[2] = 0;
  CHECK(sinpe_embed(made.words.data(), words, &none.e) == SINPE_OK);
  none.e.add.sizes[3] = 9;
  CHECK(sinpe_embed(made.words.data(), words, &none.e) == SINPE_BAD_ARGUMENT);
  CHECK(sinpe_embed(made.words.data(), words, nullptr) == SINPE_BAD_ARGUMENT);
}

}  // namespace

int main() {
  for (int64_t dim : {6, 33, 128}) {
    for (int32_t drop : {0, 6554, 65536}) {
      for (int mode = 0; mode < 8; ++mode) {
        const Case c{5, 2, 23, dim, (mode & 1) != 0, (mode & 2) != 0, (mode & 4) != 0, drop, (mode & 1) != 0};
        run<float>(c);
        run<sinpe::bfloat16>(c);
        run<sinpe::float16>(c);
      }
    }
  }
  run<float>({1, 1, 2000, 64, false, false, false, 32768, false});  // large enough for threads
  test_bad_ids();
  return check::finish("test_embed");
}
