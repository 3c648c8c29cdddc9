# Toolchain file for arm64 Linux; ctest runs the tests under qemu-user. Used by `make cpp PRESET=arm64-core`, or:
#   cmake -S . -B build/arm64/by-hand -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
endif()
find_program(SINPE_QEMU NAMES qemu-aarch64 qemu-aarch64-static)
set(SINPE_ARM64_ROOT /usr/aarch64-linux-gnu CACHE PATH "folder whose lib has arm64's dynamic loader, for programs that are not static")
if(SINPE_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${SINPE_QEMU} -L ${SINPE_ARM64_ROOT})
endif()
