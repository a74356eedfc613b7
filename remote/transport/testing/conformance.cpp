#include "remote/transport/testing/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "remote/transport/transport.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // longer than any machine needs; a test that waits this long has failed

class TransportTest : public testing::TestWithParam<TransportKind> {
 protected:
  void SetUp() override { std::tie(a, b) = GetParam().make(); }

  static wire::Header header(uint64_t sequence) {
    wire::Header h;
    h.type = static_cast<uint8_t>(wire::Type::kRun);
    h.session = 77;
    h.sequence = sequence;
    return h;
  }

  static std::vector<uint8_t> pattern(size_t size, uint64_t seed) {
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + (i >> 8) + seed);
    return bytes;
  }

  static AttachmentPtr attachment(Transport& from, size_t size, uint64_t seed) {
    AttachmentPtr made = from.allocate(size);
    if (!made || made->bytes().size() != size) ADD_FAILURE() << "allocate " << size;
    const std::vector<uint8_t> bytes = pattern(size, seed);
    if (size > 0) std::memcpy(made->bytes().data(), bytes.data(), size);
    return made;
  }

  static bool holds(Attachment& attachment, size_t size, uint64_t seed) {
    const std::vector<uint8_t> bytes = pattern(size, seed);
    return attachment.bytes().size() == size &&
           (size == 0 || std::memcmp(attachment.bytes().data(), bytes.data(), size) == 0);
  }

  // Sends a frame and receives it at the other end at the same time, because the transport may not buffer all of it.
  static Frame deliver(Transport& from, Transport& to, wire::Header h, std::vector<uint8_t> control,
                       AttachmentPtr attachment) {
    std::thread sender([&from, h, control = std::move(control), attachment = std::move(attachment)]() mutable {
      EXPECT_TRUE(from.send(h, control, std::move(attachment)).ok());
    });
    Frame frame;
    EXPECT_TRUE(to.receive(&frame, kLong).ok());
    sender.join();
    return frame;
  }

  // Whether a send fails, now or (over a network) soon.
  static bool learns_of_loss(Transport& transport) {
    for (int i = 0; i < 1000; ++i) {
      const Status status = transport.send(header(1), {}, nullptr);
      if (!status.ok()) return status.code() == ErrorCode::kLost;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  // Whether the attachment is released soon while both ends receive.
  bool is_released(const std::weak_ptr<Attachment>& alive) {
    Frame frame;
    for (int i = 0; i < 1000 && !alive.expired(); ++i) {
      (void)b->receive(&frame, 1ms);
      (void)a->receive(&frame, 1ms);
    }
    return alive.expired();
  }

  // Lets a transport take what the peer gave back.
  static void pump(Transport& transport) {
    Frame frame;
    EXPECT_EQ(transport.receive(&frame, 20ms).code(), ErrorCode::kTimeout);
  }

  std::unique_ptr<Transport> a, b;
};

TEST_P(TransportTest, FramesArriveInOrderAsTheyWereSent) {
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(a->send(header(i), pattern(i, i), nullptr).ok());
  for (uint64_t i = 0; i < 100; ++i) {
    Frame frame;
    ASSERT_TRUE(b->receive(&frame, kLong).ok());
    EXPECT_EQ(frame.header.sequence, i);
    EXPECT_EQ(frame.header.session, 77u);
    EXPECT_EQ(frame.header.type, static_cast<uint8_t>(wire::Type::kRun));
    EXPECT_EQ(frame.header.length, i);
    EXPECT_EQ(frame.header.flags, 0);
    EXPECT_EQ(frame.control, pattern(i, i));
    EXPECT_EQ(frame.attachment, nullptr);
  }
}

TEST_P(TransportTest, WhoWaitsBusilyMeetsTheSameFrames) {
  b->set_spin_time(2ms);
  const auto start = std::chrono::steady_clock::now();
  Frame frame;
  EXPECT_EQ(b->receive(&frame, 0ms).code(), ErrorCode::kTimeout);
  EXPECT_EQ(b->receive(&frame, 1ms).code(), ErrorCode::kTimeout);   // ends before it would sleep
  EXPECT_EQ(b->receive(&frame, 10ms).code(), ErrorCode::kTimeout);  // sleeps
  EXPECT_GE(std::chrono::steady_clock::now() - start, 11ms);
  for (const auto pause : {0ms, 1ms, 5ms}) {
    std::thread sender([&] {
      std::this_thread::sleep_for(pause);
      EXPECT_TRUE(a->send(header(1), pattern(10, 1), attachment(*a, 100'000, 8)).ok());
    });
    ASSERT_TRUE(b->receive(&frame, kLong).ok());
    sender.join();
    EXPECT_EQ(frame.control, pattern(10, 1));
    EXPECT_TRUE(holds(*frame.attachment, 100'000, 8));
  }
  a = nullptr;
  EXPECT_EQ(b->receive(&frame, kLong).code(), ErrorCode::kLost);
}

TEST_P(TransportTest, LargeControlMessagesArriveWhole) {
  const std::vector<uint8_t> large = pattern(9'000'001, 3);
  std::thread sender([&] { EXPECT_TRUE(a->send(header(1), large, nullptr).ok()); });
  Frame frame;
  ASSERT_TRUE(b->receive(&frame, kLong).ok());
  sender.join();
  EXPECT_EQ(frame.control, large);
}

TEST_P(TransportTest, AttachmentsOfAllSizesGoBothWays) {
  uint64_t seed = 0;
  for (size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{32767}, size_t{32768}, size_t{32769}, size_t{100'000},
                      size_t{3'000'000}, size_t{40'000'000}}) {
    for (auto [from, to] : {std::pair(a.get(), b.get()), std::pair(b.get(), a.get())}) {
      ++seed;
      const Frame frame = deliver(*from, *to, header(seed), pattern(10, seed), attachment(*from, size, seed));
      EXPECT_EQ(frame.header.flags, wire::kAttachment);
      EXPECT_EQ(frame.control, pattern(10, seed));
      ASSERT_NE(frame.attachment, nullptr);
      EXPECT_TRUE(holds(*frame.attachment, size, seed)) << size;
    }
  }
}

TEST_P(TransportTest, MemoryIsAligned) {
  for (size_t size : {0, 1, 1000, 100'000, 5'000'000}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->allocate(size)->bytes().data()) % 64, 0u) << size;
  }
}

TEST_P(TransportTest, MemoryThatDoesNotExistIsRefused) {
  EXPECT_EQ(a->allocate(size_t{1} << 60), nullptr);
  EXPECT_EQ(a->allocate(SIZE_MAX), nullptr);
}

TEST_P(TransportTest, MemoryStaysUntouchedWhileThePeerHoldsItAndIsUsedAgainAfterwards) {
  constexpr size_t kSize = 1'000'000;
  const void* first = nullptr;
  Frame held;
  {
    AttachmentPtr sent = attachment(*a, kSize, 1);
    first = sent->bytes().data();
    held = deliver(*a, *b, header(1), {}, std::move(sent));
  }
  {
    AttachmentPtr other = attachment(*a, kSize, 2);
    EXPECT_TRUE(other->bytes().data() != first || !a->shares_memory());
    EXPECT_TRUE(holds(*held.attachment, kSize, 1));
    if (!a->shares_memory()) return;
    held = Frame();
    pump(*b);  // gives the memory back to the other end
    pump(*a);
    EXPECT_EQ(a->allocate(kSize)->bytes().data(), first);
    EXPECT_EQ(a->allocate(kSize - 1000)->bytes().data(), first);  // a similar size gets the same memory
  }
}

TEST_P(TransportTest, GivingBackGoesAlongWithTheNextFrame) {
  constexpr size_t kSize = 1'000'000;
  AttachmentPtr sent = attachment(*a, kSize, 1);
  const void* first = sent->bytes().data();
  Frame frame = deliver(*a, *b, header(1), {}, std::move(sent));
  frame = Frame();
  ASSERT_TRUE(b->send(header(2), {}, nullptr).ok());
  ASSERT_TRUE(a->receive(&frame, kLong).ok());
  EXPECT_EQ(frame.header.sequence, 2u);
  EXPECT_EQ(a->allocate(kSize)->bytes().data(), first);
}

TEST_P(TransportTest, SharingSendsPartOfAnAttachmentWithoutACopyAndReleasesItOnceItIsGivenBack) {
  constexpr size_t kSize = 4'000'000, kOffset = 64'000, kPart = 1'000'000;
  AttachmentPtr whole = attachment(*a, kSize, 5);
  std::byte* part = whole->bytes().data() + kOffset;
  std::weak_ptr<Attachment> alive = whole;
  AttachmentPtr shared = a->share(part, kPart, whole);
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->bytes().data(), part);
  EXPECT_EQ(shared->bytes().size(), kPart);
  const std::vector<std::byte> expected(part, part + kPart);
  whole = nullptr;
  Frame frame = deliver(*a, *b, header(1), {}, std::move(shared));
  ASSERT_TRUE(std::ranges::equal(frame.attachment->bytes(), expected));
  if (a->shares_memory()) {
    ASSERT_FALSE(alive.expired());
    // There is no copy: the receiver sees what is written now.
    std::memset(part, 0xAB, kPart);
    EXPECT_EQ(frame.attachment->bytes()[kPart - 1], std::byte{0xAB});
  }
  frame = Frame();
  EXPECT_TRUE(is_released(alive));
}

TEST_P(TransportTest, WhatWasReceivedCanBeSharedBack) {
  constexpr size_t kSize = 500'000;
  Frame there = deliver(*a, *b, header(1), {}, attachment(*a, kSize, 9));
  AttachmentPtr received = there.attachment;
  there = Frame();
  AttachmentPtr shared = b->share(received->bytes().data() + 100, kSize - 200, received);
  ASSERT_NE(shared, nullptr);
  received = nullptr;
  const Frame back = deliver(*b, *a, header(2), {}, std::move(shared));
  const std::vector<uint8_t> expected = pattern(kSize, 9);
  ASSERT_EQ(back.attachment->bytes().size(), kSize - 200);
  EXPECT_EQ(std::memcmp(back.attachment->bytes().data(), expected.data() + 100, kSize - 200), 0);
}

TEST_P(TransportTest, ASmallPartOfAnAttachmentCanBeSharedToo) {
  AttachmentPtr whole = attachment(*a, 100'000, 5);
  AttachmentPtr shared = a->share(whole->bytes().data() + 8, 4, whole);
  ASSERT_NE(shared, nullptr);
  ASSERT_TRUE(a->send(header(1), {}, std::move(shared)).ok());
  Frame frame;
  ASSERT_TRUE(b->receive(&frame, kLong).ok());
  ASSERT_EQ(frame.attachment->bytes().size(), 4u);
  EXPECT_EQ(std::memcmp(frame.attachment->bytes().data(), pattern(100'000, 5).data() + 8, 4), 0);
}

TEST_P(TransportTest, AttachmentsOutliveTheTransport) {
  const Frame frame = deliver(*a, *b, header(1), {}, attachment(*a, 200'000, 1));
  AttachmentPtr own = attachment(*b, 200'000, 2);
  a = nullptr;
  b = nullptr;
  EXPECT_TRUE(holds(*frame.attachment, 200'000, 1));
  EXPECT_TRUE(holds(*own, 200'000, 2));
}

TEST_P(TransportTest, WhatNobodyReceivedIsReleased) {
  AttachmentPtr whole = attachment(*a, 200'000, 1);
  std::weak_ptr<Attachment> alive = whole;
  // The send may block until the other end is closed.
  std::thread sender([&, shared = a->share(whole->bytes().data(), 200'000, whole)]() mutable {
    (void)a->send(header(1), {}, std::move(shared));
  });
  std::this_thread::sleep_for(5ms);
  whole = nullptr;
  b = nullptr;
  sender.join();
  a = nullptr;
  EXPECT_TRUE(alive.expired());
}

TEST_P(TransportTest, ReceiveTimesOut) {
  Frame frame;
  EXPECT_EQ(a->receive(&frame, 0ns).code(), ErrorCode::kTimeout);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(a->receive(&frame, 30ms).code(), ErrorCode::kTimeout);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
}

// Over a network the frames may arrive later, so the test asks again. They all arrive soon. A transport that must be
// asked twice for every frame does not take what is available.
TEST_P(TransportTest, ZeroTimeoutTakesWhatIsThere) {
  constexpr uint64_t kFrames = 20;
  for (uint64_t i = 1; i <= kFrames; ++i) ASSERT_TRUE(a->send(header(i), pattern(50, 0), nullptr).ok());
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  Frame frame;
  uint64_t missed = 0;
  for (uint64_t i = 1; i <= kFrames;) {
    const Status status = b->receive(&frame, 0ns);
    if (status.ok()) {
      EXPECT_EQ(frame.header.sequence, i++);
      continue;
    }
    ASSERT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ++missed;
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_LT(missed, kFrames);
  EXPECT_EQ(b->receive(&frame, 0ns).code(), ErrorCode::kTimeout);
}

TEST_P(TransportTest, WakeEndsAWait) {
  Status status;
  std::thread receiver([&] {
    Frame frame;
    status = a->receive(&frame, kLong);
  });
  std::this_thread::sleep_for(5ms);  // so that wake() usually comes during the wait; it must also work before it
  a->wake();
  receiver.join();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
}

TEST_P(TransportTest, WakeDoesNotHideAFrame) {
  ASSERT_TRUE(b->send(header(1), {}, nullptr).ok());
  a->wake();
  Frame frame;
  Status status = a->receive(&frame, kLong);
  if (status.code() == ErrorCode::kTimeout) status = a->receive(&frame, kLong);
  EXPECT_TRUE(status.ok());
}

TEST_P(TransportTest, WhatAClosedPeerSentIsReceivedBeforeItsLossIsReported) {
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(a->send(header(i), pattern(500, i), attachment(*a, 10'000, i)).ok());
  a = nullptr;
  Frame frame;
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(b->receive(&frame, kLong).ok());
    EXPECT_EQ(frame.header.sequence, i);
    EXPECT_TRUE(holds(*frame.attachment, 10'000, i));
  }
  EXPECT_EQ(b->receive(&frame, kLong).code(), ErrorCode::kLost);
  EXPECT_EQ(b->receive(&frame, 0ns).code(), ErrorCode::kLost);
  EXPECT_TRUE(learns_of_loss(*b));
}

TEST_P(TransportTest, ClosingEndsThePeersWait) {
  Status status;
  std::thread receiver([&] {
    Frame frame;
    status = a->receive(&frame, kLong);
  });
  std::this_thread::sleep_for(5ms);
  b = nullptr;
  receiver.join();
  EXPECT_EQ(status.code(), ErrorCode::kLost);
}

TEST_P(TransportTest, AFailedSendDoesNotHideWhatThePeerSentBefore) {
  ASSERT_TRUE(a->send(header(1), pattern(100, 1), nullptr).ok());
  a = nullptr;
  EXPECT_TRUE(learns_of_loss(*b));
  Frame frame;
  EXPECT_TRUE(b->receive(&frame, kLong).ok());
  EXPECT_EQ(b->receive(&frame, kLong).code(), ErrorCode::kLost);
}

TEST_P(TransportTest, BothEndsMaySendMuchAtTheSameTimeBeforeTheyReceive) {
  const std::vector<uint8_t> large = pattern(3'000'000, 1);
  auto end = [&](Transport& transport) {
    for (uint64_t i = 0; i < 5; ++i)
      ASSERT_TRUE(transport.send(header(i), large, attachment(transport, 300'000, i)).ok());
    for (uint64_t i = 0; i < 5; ++i) {
      Frame frame;
      ASSERT_TRUE(transport.receive(&frame, kLong).ok());
      EXPECT_EQ(frame.header.sequence, i);
      EXPECT_EQ(frame.control, large);
      EXPECT_TRUE(holds(*frame.attachment, 300'000, i));
    }
  };
  std::thread other([&] { end(*b); });
  end(*a);
  other.join();
}

TEST_P(TransportTest, ManyThreadsMaySendWhileOthersReceive) {
  constexpr uint64_t kThreads = 4, kFrames = 100;
  auto run = [&](Transport& transport) {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < kFrames; ++i) {
          const size_t size = i % 5 == 0 ? 200'000 : i % 3 == 0 ? 50'000 : i;
          AttachmentPtr made = i % 2 ? attachment(transport, size, t + i) : nullptr;
          ASSERT_TRUE(transport.send(header(t * kFrames + i), pattern(i * 50, t), std::move(made)).ok());
        }
      });
    }
    std::vector<uint64_t> next(kThreads, 0);
    for (uint64_t n = 0; n < kThreads * kFrames; ++n) {
      Frame frame;
      ASSERT_TRUE(transport.receive(&frame, kLong).ok());
      const uint64_t t = frame.header.sequence / kFrames, i = frame.header.sequence % kFrames;
      EXPECT_EQ(i, next[t]++);  // frames of one thread stay in order
      EXPECT_EQ(frame.control, pattern(i * 50, t));
      if (i % 2) {
        EXPECT_TRUE(holds(*frame.attachment, i % 5 == 0 ? 200'000 : i % 3 == 0 ? 50'000 : i, t + i));
      }
    }
    for (auto& thread : threads) thread.join();
  };
  std::thread other([&] { run(*b); });
  run(*a);
  other.join();
}

TEST_P(TransportTest, AttachmentsMayBeReleasedOnAnyThread) {
  std::atomic<int> released = 0;
  std::thread receiver([&] {
    std::vector<std::thread> users;
    for (int i = 0; i < 40; ++i) {
      Frame frame;
      ASSERT_TRUE(b->receive(&frame, kLong).ok());
      users.emplace_back(
          [held = std::move(frame.attachment), i] { EXPECT_TRUE(holds(*held, 100'000, static_cast<uint64_t>(i))); });
    }
    for (auto& user : users) user.join();
    ASSERT_TRUE(b->send(header(1), {}, nullptr).ok());
  });
  for (int i = 0; i < 40; ++i) {
    AttachmentPtr made = attachment(*a, 100'000, static_cast<uint64_t>(i));
    std::byte* data = made->bytes().data();
    auto keep = std::shared_ptr<void>(data, [made, &released](void*) { ++released; });
    made = nullptr;
    ASSERT_TRUE(a->send(header(1), {}, a->share(data, 100'000, std::move(keep))).ok());
  }
  Frame frame;
  ASSERT_TRUE(a->receive(&frame, kLong).ok());
  receiver.join();
  for (int i = 0; i < 100 && released < 40; ++i) pump(*a);
  EXPECT_EQ(released, 40);
}

TEST_P(TransportTest, AnAttachmentOfAnotherConnectionIsSentAsWell) {
  TransportPair other = GetParam().make();
  const Frame frame = deliver(*a, *b, header(1), {}, attachment(*other.first, 150'000, 3));
  EXPECT_TRUE(holds(*frame.attachment, 150'000, 3));
}

TEST_P(TransportTest, HasADescription) { EXPECT_FALSE(a->description().empty()); }

INSTANTIATE_TEST_SUITE_P(Transports, TransportTest, testing::ValuesIn(transport_kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace torch_remote::remote
