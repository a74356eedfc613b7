#include "tests/emulated_gpu/emulator/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace torch_remote::codegen::emulator {
namespace {

TEST(DeviceMemory, BeginsUninitialisedAndEndsAtAGuardedPage) {
  DeviceMemory memory(size_t{1} << 20);
  void* address = nullptr;
  ASSERT_TRUE(memory.allocate(100, &address, "x"));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 16, 0U);
  const std::vector<unsigned char> ones(100, 0xFF);
  EXPECT_EQ(std::memcmp(address, ones.data(), 100), 0);
  EXPECT_EQ(memory.cells(address)[99].writer, kUninitialized);
  EXPECT_EQ(memory.cells(address)[100].writer, kUnallocated);
  char* end = static_cast<char*>(address) + 112;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(end) % 4096, 0U);
  EXPECT_DEATH(*end = 1, "");
}

TEST(DeviceMemory, CopiesStayInBounds) {
  DeviceMemory memory(size_t{1} << 20);
  void* address = nullptr;
  ASSERT_TRUE(memory.allocate(8, &address, "x"));
  const char bytes[9] = "abcdefgh";
  EXPECT_TRUE(memory.write(address, bytes, 8));
  EXPECT_EQ(memory.cells(address)[7].writer, kHost);
  char back[9] = {};
  EXPECT_TRUE(memory.read(back, address, 8));
  EXPECT_STREQ(back, "abcdefgh");
  const Status status = memory.write(static_cast<char*>(address) + 1, bytes, 8);
  EXPECT_EQ(status.message(), "emulator: a copy of 8 bytes is out of bounds: it begins at byte 1 of 'x' (8 bytes)");
  EXPECT_FALSE(memory.read(back, bytes, 1));
}

TEST(DeviceMemory, WhatWasFreedCannotBeTouched) {
  DeviceMemory memory(size_t{1} << 20);
  void *address = nullptr, *other = nullptr;
  ASSERT_TRUE(memory.allocate(8, &address));
  EXPECT_TRUE(memory.free(address));
  EXPECT_FALSE(memory.free(address));
  EXPECT_EQ(memory.cells(address)->writer, kUnallocated);
  EXPECT_DEATH(*static_cast<char*>(address) = 1, "");
  ASSERT_TRUE(memory.allocate(8, &other));
  EXPECT_NE(address, other);  // fresh addresses are preferred
}

TEST(DeviceMemory, CopiesAndFillsInsideStayInBounds) {
  for (const bool tracked : {true, false}) {
    DeviceMemory memory(size_t{1} << 20, tracked);
    void *a = nullptr, *b = nullptr;
    ASSERT_TRUE(memory.allocate(8, &a, "a"));
    ASSERT_TRUE(memory.allocate(8, &b, "b"));
    EXPECT_TRUE(memory.fill(a, 'x', 8));
    EXPECT_TRUE(memory.copy(static_cast<char*>(b) + 3, a, 5));
    EXPECT_FALSE(memory.fill(a, 'x', 9));
    EXPECT_FALSE(memory.copy(static_cast<char*>(b) + 4, a, 5));
    EXPECT_FALSE(memory.copy(b, static_cast<char*>(a) + 4, 5));
    char back[9] = {};
    EXPECT_TRUE(memory.read(back, b, 8));
    EXPECT_STREQ(back, "\xFF\xFF\xFFxxxxx");
    EXPECT_EQ(memory.tracked(), tracked);
    if (tracked) {
      EXPECT_EQ(memory.cells(b)[2].writer, kUninitialized);
      EXPECT_EQ(memory.cells(b)[3].writer, kHost);
    }
  }
}

TEST(DeviceMemory, AddressesAreUsedAgainWhenThereAreNoOthers) {
  DeviceMemory memory(size_t{64} << 10);
  for (int i = 0; i < 100; ++i) {
    void* address = nullptr;
    ASSERT_TRUE(memory.allocate(10000, &address)) << i;
    ASSERT_TRUE(memory.free(address));
  }
  void* address = nullptr;
  EXPECT_EQ(memory.allocate(size_t{1} << 20, &address).code(), ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace torch_remote::codegen::emulator
