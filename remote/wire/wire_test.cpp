#include "remote/wire/wire.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "remote/wire/message.h"

namespace torch_remote::wire {
namespace {

TEST(Crc32c, AgreesWithTheVectorsOfRfc3720) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(digits.data(), digits.size()), 0xE3069283u);
  const std::vector<uint8_t> zeros(32, 0), ones(32, 0xFF);
  EXPECT_EQ(crc32c(zeros.data(), 32), 0x8A9136AAu);
  EXPECT_EQ(crc32c(ones.data(), 32), 0x62A8AB43u);
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
}

TEST(Crc32c, HardwareAndPortableAgreeAtAnyLengthAndAlignment) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> bytes(300);
  for (auto& b : bytes) b = static_cast<uint8_t>(random());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size + begin <= bytes.size(); size += 7) {
      EXPECT_EQ(crc32c(bytes.data() + begin, size), crc32c_portable(bytes.data() + begin, size))
          << begin << " " << size;
    }
  }
}

TEST(Crc32c, GoesOnFromWhatCameBefore) {
  const std::string text = "a message in three pieces";
  for (const auto crc : {crc32c, crc32c_portable}) {
    const uint32_t whole = crc(text.data(), text.size(), 0);
    EXPECT_EQ(crc(text.data() + 9, text.size() - 9, crc(text.data() + 2, 7, crc(text.data(), 2, 0))), whole);
  }
}

TEST(Message, DamagedBytesDoNotVerify) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(CreateHello(builder, 2));
  std::vector<uint8_t> bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  const Hello* hello = verify<Hello>(bytes);
  ASSERT_NE(hello, nullptr);
  EXPECT_EQ(hello->process(), 2u);
  for (size_t size = 0; size < 12; ++size) EXPECT_EQ(verify<Hello>({bytes.data(), size}), nullptr) << size;
  bytes[0] = 0xF0;  // the root offset leads past the end
  EXPECT_EQ(verify<Hello>(bytes), nullptr);
}

TEST(Message, ErrorKeepsCodeKindAndText) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(
      CreateErrorDirect(builder, static_cast<uint8_t>(ErrorCode::kOpFailed), "IndexError", "out of range", 1, 2, 3));
  const Status status = to_status(*flatbuffers::GetRoot<Error>(builder.GetBufferPointer()));
  EXPECT_EQ(status.code(), ErrorCode::kOpFailed);
  EXPECT_EQ(status.exception_type(), "IndexError");
  EXPECT_EQ(status.message(), "out of range");
}

TEST(Message, AnErrorWithAnUnknownOrNoCodeIsStillAnError) {
  for (int code : {0, 200}) {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(CreateError(builder, static_cast<uint8_t>(code)));
    EXPECT_EQ(to_status(*flatbuffers::GetRoot<Error>(builder.GetBufferPointer())).code(), ErrorCode::kInternal);
  }
}

}  // namespace
}  // namespace torch_remote::wire
