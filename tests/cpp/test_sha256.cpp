// The SHA-256 of table(65536, 512) is that of docs/accuracy.md on each instruction set, with any number of threads,
// from rotated rows and from single rows. TRUTH_FILE is tests/cpp/paper512.truth.
#include "sha256.h"

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

void test_sha256() {
  CHECK(digest_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest_of(std::string(1000, 'a')) == "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

}  // namespace

int main() {
  test_sha256();
  const truth::Truth truth(TRUTH_FILE);
  std::printf("kernels in use: %s, %lld threads\n", sinpe_isa(), static_cast<long long>(sinpe::parallel_threads()));
  const int64_t words = static_cast<int64_t>(truth.plan.size()), dim = truth.dim, rows = 65536;
  const size_t size = static_cast<size_t>(rows * dim), row = static_cast<size_t>(dim);
  std::vector<float> table(size, -1.0f), encoded(size, -1.0f);
  CHECK(sinpe_table(truth.plan.data(), words, 0, rows, SINPE_FLOAT32, table.data(), dim) == SINPE_OK);
  Sha256 sha;
  sha.add(table.data(), size * sizeof(float));
  CHECK(sha.finish() == kSha256);

  std::vector<int64_t> backwards;  // not consecutive, so no rotation
  for (int64_t r = rows; r-- > 0;) backwards.push_back(r);
  CHECK(sinpe_encode(truth.plan.data(), words, backwards.data(), SINPE_INT64, rows, SINPE_FLOAT32, encoded.data(),
                     dim) == SINPE_OK);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const float *one = &table[r * row], *other = &encoded[(static_cast<size_t>(rows) - 1 - r) * row];
    CHECK(std::memcmp(one, other, row * sizeof(float)) == 0);
  }
  return check::finish("test_sha256");
}
