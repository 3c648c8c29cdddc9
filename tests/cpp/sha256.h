// SHA-256 (FIPS 180-4) of data added in pieces.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

class Sha256 {
 public:
  void add(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    length_ += size;
    while (size > 0) {
      const size_t n = size < 64 - filled_ ? size : 64 - filled_;
      std::memcpy(block_ + filled_, bytes, n);
      filled_ += n;
      bytes += n;
      size -= n;
      if (filled_ == 64) compress();
    }
  }

  // The digest in hexadecimal. Nothing can be added afterwards.
  std::string finish() {
    const uint64_t bits = 8 * length_;
    const unsigned char mark = 0x80, zero = 0;
    add(&mark, 1);
    while (filled_ != 56) add(&zero, 1);
    for (int k = 7; k >= 0; --k) {
      const unsigned char byte = static_cast<unsigned char>(bits >> 8 * k);
      add(&byte, 1);
    }
    std::string text;
    for (uint32_t word : state_) {
      char digits[9];
      std::snprintf(digits, sizeof digits, "%08x", static_cast<unsigned>(word));
      text += digits;
    }
    return text;
  }

 private:
  static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

  void compress() {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      const unsigned char* b = block_ + 4 * i;
      w[i] = uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
    }
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t s[8];
    std::memcpy(s, state_, sizeof s);
    for (int i = 0; i < 64; ++i) {
      const uint32_t e1 = rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25);
      const uint32_t t1 = s[7] + e1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const uint32_t e0 = rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22);
      const uint32_t t2 = e0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      std::memmove(s + 1, s, 7 * sizeof s[0]);
      s[4] += t1;
      s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) state_[i] += s[i];
    filled_ = 0;
  }

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[64];
  size_t filled_ = 0;
  uint64_t length_ = 0;
};
