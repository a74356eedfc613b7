#include "remote/wire/delta.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>

namespace torch_remote::remote {
namespace {

int64_t bits(double v) {
  int64_t word;
  std::memcpy(&word, &v, 8);
  return word;
}

// Sends `now` from one end to the other and returns the number of bytes sent.
struct ParamsLink {
  std::vector<int64_t> sender, receiver;
  bool changed = false;

  size_t send(const std::vector<int64_t>& now) {
    receiver.resize(now.size());
    std::vector<uint8_t> bytes;
    encode_params(now, sender, bytes);
    EXPECT_TRUE(decode_params(bytes, receiver, &changed).ok());
    EXPECT_EQ(receiver, now);
    EXPECT_EQ(sender, now);
    return bytes.size();
  }
};

TEST(Params, TheSameAgainCostsNothing) {
  ParamsLink link;
  std::vector<int64_t> now(1000, 7);
  EXPECT_GT(link.send(now), 1000u);
  EXPECT_TRUE(link.changed);
  EXPECT_EQ(link.send(now), 0u);
  EXPECT_FALSE(link.changed);
}

TEST(Params, AFewChangesCostAFewBytes) {
  ParamsLink link;
  std::vector<int64_t> now(25000, 64);
  now[100] = bits(1e-3);
  link.send(now);
  now[5] += 1;
  now[6] -= 1;
  now[100] = bits(0.97e-3);
  now[24999] = -now[24999];
  EXPECT_LE(link.send(now), 24u);
}

TEST(Params, AWordForManyParametersTravelsOnce) {
  // This resembles an optimizer step: one new word for each of 200 tensors, and another one for every second of them.
  std::vector<int64_t> now(400), mine, theirs(400);
  for (int step = 1; step < 20; ++step) {
    for (size_t i = 0; i < now.size(); i += 2) {
      now[i] = std::bit_cast<int64_t>(1.0 / step);
      now[i + 1] = i % 4 == 0 ? std::bit_cast<int64_t>(0.3 * step) : 7;
    }
    std::vector<uint8_t> bytes;
    encode_params(now, mine, bytes);
    EXPECT_LT(bytes.size(), step == 1 ? 1000u : 700u);
    bool changed = false;
    ASSERT_TRUE(decode_params(bytes, theirs, &changed).ok());
    EXPECT_EQ(theirs, now);
  }
  // Only the last 8 words are stored, so the ninth is sent again.
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < now.size(); ++i) now[i] = std::bit_cast<int64_t>(1.0 + static_cast<double>(i % 9));
  encode_params(now, mine, bytes);
  bool changed = false;
  ASSERT_TRUE(decode_params(bytes, theirs, &changed).ok());
  EXPECT_EQ(theirs, now);
  EXPECT_GT(bytes.size(), 400u * 7);
  // A message that refers to a word that it did not send is refused.
  EXPECT_FALSE(decode_params(std::vector<uint8_t>{0, 1, 3}, theirs, &changed).ok());
}

TEST(Params, ExtremeWordsSurvive) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  ParamsLink link;
  const std::vector<int64_t> words = {0,
                                      1,
                                      -1,
                                      kMin,
                                      kMax,
                                      bits(-0.0),
                                      bits(1.5),
                                      int64_t{1} << 54,
                                      int64_t{1} << 53,
                                      (int64_t{1} << 54) - 1,
                                      -(int64_t{1} << 54),
                                      int64_t{1} << 62};
  for (int64_t from : words) {
    for (int64_t to : words) link.send({from}), link.send({to});
  }
}

TEST(Params, RandomSequencesStayInStep) {
  std::mt19937_64 random(2);
  ParamsLink link;
  std::vector<int64_t> now(777);
  for (int round = 0; round < 200; ++round) {
    const size_t changes = random() % 20 * (random() % 20);
    for (size_t c = 0; c < changes; ++c) now[random() % now.size()] = static_cast<int64_t>(random() >> (random() % 64));
    link.send(now);
  }
}

TEST(Params, DamagedBytesAreRefusedAndNothingIsWrittenPastTheEnd) {
  std::mt19937_64 random(3);
  std::vector<int64_t> now(50), sender;
  for (auto& word : now) word = static_cast<int64_t>(random());
  std::vector<uint8_t> bytes;
  encode_params(now, sender, bytes);
  bool changed;
  for (size_t size = 1; size < bytes.size(); ++size) {
    std::vector<int64_t> last(50);
    EXPECT_FALSE(decode_params({bytes.data(), size}, last, &changed).ok()) << size;
  }
  std::vector<int64_t> shorter(49);
  EXPECT_EQ(decode_params(bytes, shorter, &changed).code(), ErrorCode::kInvalid);
  const std::vector<uint8_t> huge_skip = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 1, 0};
  EXPECT_FALSE(decode_params(huge_skip, shorter, &changed).ok());
  const std::vector<uint8_t> too_long = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02, 1, 0};
  EXPECT_FALSE(decode_params(too_long, shorter, &changed).ok());
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> garbage(random() % 24);
    for (auto& b : garbage) b = static_cast<uint8_t>(random() % 8 ? random() % 8 : random());
    std::vector<int64_t> last(5);
    (void)decode_params(garbage, last, &changed);  // must not trip the sanitizers
  }
}

struct BindingsLink {
  Bindings sender, receiver;

  size_t send(const std::vector<uint64_t>& now, uint64_t first_result_id) {
    receiver.ids.resize(now.size());
    std::vector<uint8_t> bytes;
    encode_bindings(now, first_result_id, sender, bytes);
    EXPECT_TRUE(decode_bindings(bytes, first_result_id, receiver).ok());
    EXPECT_EQ(receiver.ids, now);
    EXPECT_EQ(sender.ids, now);
    EXPECT_EQ(receiver.relative, sender.relative);
    return bytes.size();
  }
};

TEST(Bindings, WeightsAndActivationsCostNothingFromTheThirdRunOn) {
  BindingsLink link;
  std::vector<uint64_t> now(300);
  for (uint64_t step = 0; step < 10; ++step) {
    const uint64_t first_result_id = 1000 + 170 * step;
    for (size_t i = 0; i < now.size(); ++i) now[i] = i % 2 ? i : first_result_id - i;
    const size_t bytes = link.send(now, first_result_id);
    if (step == 1) {
      EXPECT_LE(bytes, 3 * now.size());
    } else if (step >= 2) {
      EXPECT_EQ(bytes, 0u);
    }
  }
}

TEST(Bindings, AnIdThatFollowsNoRuleCostsItselfOnly) {
  BindingsLink link;
  std::vector<uint64_t> now = {1, 2, 3, 4, 5, 6, 7, 8};
  link.send(now, 100);
  now[4] = 90;
  EXPECT_LE(link.send(now, 100), 4u);
  EXPECT_EQ(link.send(now, 107), 0u);
}

TEST(Bindings, RandomSequencesStayInStep) {
  std::mt19937_64 random(4);
  BindingsLink link;
  std::vector<uint64_t> now(100);
  uint64_t first_result_id = 1;
  for (int round = 0; round < 300; ++round) {
    first_result_id += random() % 50;
    for (size_t i = 0; i < now.size(); ++i) {
      switch (random() % 4) {
        case 0:
          now[i] = 1 + random() % first_result_id;
          break;
        case 1:
          now[i] = first_result_id - i % first_result_id;
          break;
        default:
          break;
      }
    }
    link.send(now, first_result_id);
  }
}

TEST(Bindings, DamagedBytesAreRefused) {
  std::vector<uint64_t> now = {1, 2, 300, 70000};
  Bindings sender;
  std::vector<uint8_t> bytes;
  encode_bindings(now, 50, sender, bytes);
  for (size_t size = 1; size < bytes.size(); ++size) {
    Bindings last;
    last.ids.resize(4);
    EXPECT_FALSE(decode_bindings({bytes.data(), size}, 50, last).ok()) << size;
  }
  Bindings shorter;
  shorter.ids.resize(3);
  EXPECT_EQ(decode_bindings(bytes, 50, shorter).code(), ErrorCode::kInvalid);
  std::mt19937_64 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> garbage(random() % 24);
    for (auto& b : garbage) b = static_cast<uint8_t>(random() % 8 ? random() % 8 : random());
    Bindings last;
    last.ids.resize(5);
    (void)decode_bindings(garbage, random(), last);
  }
}

TEST(Frees, RoundTripInAnyOrderAndAByteEachWhenClose) {
  std::vector<uint64_t> ids = {1000000, 1000001, 1000010, 999999, 1000003};
  std::vector<uint8_t> bytes;
  encode_freed_ids(ids, bytes);
  EXPECT_EQ(bytes.size(), 3u + 4u);
  std::vector<uint64_t> out;
  ASSERT_TRUE(decode_freed_ids(bytes, &out).ok());
  EXPECT_EQ(out, (std::vector<uint64_t>{999999, 1000000, 1000001, 1000003, 1000010}));
}

TEST(Frees, DoubleFreesOverflowAndTruncationAreRefused) {
  std::vector<uint64_t> out;
  EXPECT_FALSE(decode_freed_ids(std::vector<uint8_t>{5, 0}, &out).ok());
  EXPECT_FALSE(decode_freed_ids(std::vector<uint8_t>{0}, &out).ok());
  EXPECT_FALSE(decode_freed_ids(std::vector<uint8_t>{0x80}, &out).ok());
  const std::vector<uint8_t> wraps = {5, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01};
  EXPECT_FALSE(decode_freed_ids(wraps, &out).ok());
}

}  // namespace
}  // namespace torch_remote::remote
