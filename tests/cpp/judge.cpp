// Prints the reference values of the exhaustive scan for comparison with mpmath: `judge FILE` reads lines "position
// channel" and appends hi and lo. Uses no library.
#include <cinttypes>
#include <cstdio>
#include <iostream>

#include "truth.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: judge FILE < lines of position and channel\n");
    return 2;
  }
  try {
    const truth::Truth truth(argv[1]);
    for (int64_t position, channel; std::cin >> position >> channel;) {
      for (const truth::Truth::Pair& pair : truth.pairs) {
        if (channel != pair.sine && channel != pair.cosine) continue;
        const truth::SinCos v = truth.at(position, truth.frequencies[pair.frequency]);
        const truth::Sum value = channel == pair.sine ? v.sine : v.cosine;
        std::printf("%" PRId64 " %" PRId64 " %a %a\n", position, channel, value.hi, value.lo);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "judge: %s\n", error.what());
    return 2;
  }
  return 0;
}
