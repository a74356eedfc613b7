#include "ir/opaque.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace torch_remote::ir {
namespace {

// Signatures come from programs and stay registered for the life of the process, so their number and size are limited.
TEST(Opaque, SignaturesDoNotTakeMemoryWithoutEnd) {
  std::vector<OpaqueArg> args(512);
  for (size_t i = 0; i < args.size(); ++i) args[i] = {std::string(1024, 'x'), ArgKind::kInt};
  size_t bytes = 0;
  Status status;
  Opcode opcode = kInvalidOpcode;
  for (int n = 0; status.ok() && n < 1000; ++n) {
    status = declare_opaque("test::op" + std::to_string(n), args, {}, 0, &opcode);
    if (status.ok()) bytes += args.size() * 1024;
  }
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("too many ops"), std::string::npos) << status.message();
  EXPECT_LT(bytes, size_t{64} << 20);
  // Registered ops stay usable, and an op of ordinary size still fits.
  EXPECT_TRUE(declare_opaque("test::op0", args, {}, 0, &opcode).ok());
  const OpaqueArg self[] = {{"self", ArgKind::kTensor}};
  EXPECT_TRUE(declare_opaque("test::small", self, {}, 0, &opcode).ok());
}

}  // namespace
}  // namespace torch_remote::ir
