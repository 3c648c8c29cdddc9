// table(65536, 512) is a constant of mathematics: its SHA-256 is that of docs/accuracy.md on every instruction set, with any
// number of threads, from rotated rows and from rows made one by one. TRUTH_FILE is tests/cpp/paper512.truth.
#include "sha256.h"

#include <algorithm>
#include <vector>

#include "check.h"
#include "core/parallel.h"
#include "sinpe/sinpe.h"
#include "truth.h"

namespace {

const char* const kSha256 = "0bd6b4b1dfc59ae6ab06fb89d6ef7bf2be812b44837dee370b4231f20574f60f";

std::string digest_of(const std::string& text) {
  Sha256 sha;
  for (char c : text) sha.add(&c, 1);
  return sha.finish();
}

void test_the_hash_itself() {
  CHECK(digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of(std::string(1000, 'a')) == "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

// Of 65536 rows, `rows` from each call.
std::string table_digest(const truth::Truth& truth, int64_t rows, bool by_table) {
  const int64_t words = static_cast<int64_t>(truth.plan.size()), dim = truth.dim;
  std::vector<float> out(static_cast<size_t>(rows * dim));
  std::vector<int64_t> positions;
  Sha256 sha;
  for (int64_t first = 0; first < 65536; first += rows) {
    positions.clear();
    for (int64_t r = 0; r < rows; ++r) positions.push_back(first + r);
    if (!by_table) std::reverse(positions.begin(), positions.end());  // no run, so no rotation
    const sinpe_status status = by_table
                                    ? sinpe_table(truth.plan.data(), words, first, rows, SINPE_FLOAT32, out.data(), dim)
                                    : sinpe_encode(truth.plan.data(), words, positions.data(), SINPE_INT64, rows,
                                                   SINPE_FLOAT32, out.data(), dim);
    CHECK(status == SINPE_OK);
    for (int64_t r = 0; r < rows; ++r) {
      sha.add(&out[static_cast<size_t>((by_table ? r : rows - 1 - r) * dim)], static_cast<size_t>(dim) * sizeof(float));
    }
  }
  return sha.finish();
}

}  // namespace

int main() {
  test_the_hash_itself();
  const truth::Truth truth(TRUTH_FILE);
  std::printf("kernels in use: %s, %lld threads\n", sinpe_isa(), static_cast<long long>(sinpe::parallel_threads()));
  CHECK(table_digest(truth, 65536, true) == kSha256);
  CHECK(table_digest(truth, 2048, false) == kSha256);
  return check::finish("test_sha256");
}
