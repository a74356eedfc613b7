#include "worker/collectives/collectives.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "remote/net/deadline.h"
#include "worker/collectives/label.h"
#include "worker/collectives/peers.h"
#include "worker/device/memory.h"

// Ranks are threads, each with its own end of the mesh.
namespace torch_remote::worker {
namespace {

using ir::DType;
using namespace std::chrono_literals;

const std::vector<uint8_t> kSecret(32, 7);

std::vector<std::unique_ptr<PeerListener>> listeners(int size) {
  std::vector<std::unique_ptr<PeerListener>> all(size);
  for (auto& listener : all) EXPECT_TRUE(PeerListener::open("127.0.0.1", &listener).ok());
  return all;
}

GroupPlan plan_of(int rank, const std::vector<std::unique_ptr<PeerListener>>& all) {
  GroupPlan plan{rank, {}, kSecret};
  for (const auto& listener : all) plan.addresses.push_back(listener->address());
  return plan;
}

// Calls f(rank, mesh) on one thread per rank.
void with_ranks(int size, const std::function<void(int, Mesh&)>& f) {
  const auto all = listeners(size);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Mesh mesh(rank, size);
      const Status joined = join(*all[rank], plan_of(rank, all), {.time = 20s}, mesh);
      ASSERT_TRUE(joined.ok()) << joined.message();
      f(rank, mesh);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
std::span<std::byte> bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

#define EXPECT_OK(expression)                       \
  do {                                              \
    const Status status_ = (expression);            \
    EXPECT_TRUE(status_.ok()) << status_.message(); \
  } while (false)

const OpLimits kLimits{.time = 20s};

// Sizes around the limits of parts and pieces: none, fewer than ranks, small, several pieces with a rest.
const std::vector<size_t> kSizes = {0, 1, 2, 7, 1000, 70'001, 1'300'003};

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, AllReduce) {
  const int size = GetParam();
  with_ranks(size, [&](int rank, Mesh& mesh) {
    uint64_t sequence = 0;
    for (const size_t count : kSizes) {
      std::vector<int32_t> values(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = static_cast<int32_t>(i) * (rank + 1);
        expected[i] = static_cast<int32_t>(i) * size * (size + 1) / 2;
      }
      EXPECT_OK(Collectives(mesh, ++sequence, kLimits).all_reduce(DType::kInt32, Reduction::kSum, bytes(values)));
      EXPECT_TRUE(values == expected) << count;
    }
    std::vector<float> average(100'000, static_cast<float>(rank));
    EXPECT_OK(Collectives(mesh, ++sequence, kLimits).all_reduce(DType::kFloat32, Reduction::kAvg, bytes(average)));
    EXPECT_EQ(average, std::vector<float>(100'000, static_cast<float>(size - 1) / 2));
  });
}

TEST_P(Ranks, AllRanksGetTheSameBits) {
  const int size = GetParam();
  std::vector<std::vector<float>> results(size);
  with_ranks(size, [&](int rank, Mesh& mesh) {
    std::vector<float> values(300'001);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = 1.0f / static_cast<float>(i * 7 + static_cast<size_t>(rank) * 13 + 1);
    EXPECT_OK(Collectives(mesh, 1, kLimits).all_reduce(DType::kFloat32, Reduction::kSum, bytes(values)));
    results[rank] = values;
  });
  for (const auto& result : results) EXPECT_TRUE(result == results[0]);
}

TEST_P(Ranks, ReduceAndBroadcast) {
  const int size = GetParam();
  with_ranks(size, [&](int rank, Mesh& mesh) {
    uint64_t sequence = 0;
    for (int root = 0; root < size; ++root) {
      for (const size_t count : kSizes) {
        std::vector<int64_t> values(count, rank + 1);
        EXPECT_OK(Collectives(mesh, ++sequence, kLimits).reduce(DType::kInt64, Reduction::kSum, root, bytes(values)));
        EXPECT_EQ(values,
                  std::vector<int64_t>(count, rank == root ? int64_t{size} * (size + 1) / 2 : int64_t{rank} + 1));
        EXPECT_OK(Collectives(mesh, ++sequence, kLimits).broadcast(DType::kInt64, root, bytes(values)));
        EXPECT_EQ(values, std::vector<int64_t>(count, size * (size + 1) / 2));
      }
    }
  });
}

TEST_P(Ranks, GatherAndScatter) {
  const int size = GetParam();
  with_ranks(size, [&](int rank, Mesh& mesh) {
    uint64_t sequence = 0;
    for (const size_t count : kSizes) {
      std::vector<int16_t> mine(count, static_cast<int16_t>(rank)), all(count * size), expected(count * size);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int16_t>(i / count);
      EXPECT_OK(Collectives(mesh, ++sequence, kLimits).all_gather(DType::kInt16, bytes(mine), bytes(all)));
      EXPECT_TRUE(all == expected);
      const int root = size - 1;
      std::vector<int16_t> gathered(rank == root ? count * size : 0);
      EXPECT_OK(Collectives(mesh, ++sequence, kLimits).gather(DType::kInt16, root, bytes(mine), bytes(gathered)));
      EXPECT_TRUE(rank != root || gathered == expected);
      std::vector<int16_t> part(count, -1);
      EXPECT_OK(Collectives(mesh, ++sequence, kLimits).scatter(DType::kInt16, root, bytes(gathered), bytes(part)));
      EXPECT_TRUE(part == mine);
      std::vector<int16_t> sum(count);
      EXPECT_OK(Collectives(mesh, ++sequence, kLimits)
                    .reduce_scatter(DType::kInt16, Reduction::kSum, bytes(all), bytes(sum)));
      EXPECT_EQ(sum, std::vector<int16_t>(count, static_cast<int16_t>(size * rank)));
    }
  });
}

TEST_P(Ranks, AllToAll) {
  const int size = GetParam();
  with_ranks(size, [&](int rank, Mesh& mesh) {
    // Rank a sends a + 2 b elements to rank b, each with the value a * 100 + b.
    std::vector<int32_t> input, expected;
    std::vector<uint64_t> from, to;
    for (int other = 0; other < size; ++other) {
      input.insert(input.end(), rank + 2 * other, rank * 100 + other);
      expected.insert(expected.end(), other + 2 * rank, other * 100 + rank);
      to.push_back(uint64_t{4} * static_cast<uint64_t>(rank + 2 * other));
      from.push_back(uint64_t{4} * static_cast<uint64_t>(other + 2 * rank));
    }
    std::vector<int32_t> output(expected.size());
    EXPECT_OK(Collectives(mesh, 1, kLimits).all_to_all(DType::kInt32, bytes(input), to, bytes(output), from));
    EXPECT_EQ(output, expected);
    EXPECT_OK(Collectives(mesh, 2, kLimits).barrier());
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Ranks, testing::Values(1, 2, 3, 5));

TEST(Messages, BothSendFirst) {
  with_ranks(2, [](int rank, Mesh& mesh) {
    std::vector<double> out(2'000'000, rank), in(out.size(), -1);
    EXPECT_OK(send(mesh, DType::kFloat64, bytes(out), 1 - rank, 0, kLimits));
    int from = 1 - rank;
    EXPECT_OK(receive(mesh, DType::kFloat64, bytes(in), &from, 0, kLimits));
    EXPECT_EQ(in, std::vector<double>(in.size(), 1 - rank));
  });
}

TEST(Messages, TagsAreTakenInAnyOrder) {
  with_ranks(2, [](int rank, Mesh& mesh) {
    if (rank == 0) {
      for (const uint64_t tag : {1, 2, 1}) {
        static uint8_t number = 0;
        std::vector<uint8_t> data{++number};
        EXPECT_OK(send(mesh, DType::kUInt8, bytes(data), 1, tag, kLimits));
      }
      EXPECT_OK(Collectives(mesh, 1, kLimits).barrier());
      return;
    }
    EXPECT_OK(Collectives(mesh, 1, kLimits).barrier());
    for (const auto& [tag, expected] : {std::pair{2, 2}, std::pair{1, 1}, std::pair{1, 3}}) {
      std::vector<uint8_t> data{0};
      int from = 0;
      EXPECT_OK(receive(mesh, DType::kUInt8, bytes(data), &from, static_cast<uint64_t>(tag), kLimits));
      EXPECT_EQ(data[0], expected);
    }
  });
}

TEST(Messages, FromAnybody) {
  with_ranks(3, [](int rank, Mesh& mesh) {
    std::vector<int32_t> data{rank};
    if (rank != 0) {
      EXPECT_OK(send(mesh, DType::kInt32, bytes(data), 0, 5, kLimits));
      return;
    }
    int sum = 0;
    for (int i = 0; i < 2; ++i) {
      int peer = kAnyPeer;
      EXPECT_OK(receive(mesh, DType::kInt32, bytes(data), &peer, 5, kLimits));
      EXPECT_EQ(data[0], peer);
      sum += peer;
    }
    EXPECT_EQ(sum, 3);
  });
}

// --- what goes wrong -------------------------------------------------------------------------------------------------

TEST(Failures, MismatchedCallsAreNamedOnAllRanks) {
  std::latch told(3);
  std::vector<std::string> messages(3);
  std::atomic<int> failed = 0;
  with_ranks(3, [&](int rank, Mesh& mesh) {
    std::vector<float> data(rank == 1 ? 10 : 20, 1);
    Status status = Collectives(mesh, 1, kLimits).all_reduce(DType::kFloat32, Reduction::kSum, bytes(data));
    messages[rank] = status.message();
    if (!status.ok()) ++failed;
    told.arrive_and_wait();
    // A broken mesh stays broken, and reports the reason.
    EXPECT_EQ(Collectives(mesh, 2, kLimits).barrier().message(), messages[rank]);
  });
  EXPECT_EQ(failed, 3);
  std::string all = messages[0] + messages[1] + messages[2];
  EXPECT_NE(all.find("all_reduce (number 1) of 10 elements of f32, sum"), std::string::npos) << all;
  EXPECT_NE(all.find("in the same order, with tensors of the same size and dtype"), std::string::npos) << all;
}

TEST(Failures, ATimeOutNamesRankAndOp) {
  with_ranks(2, [](int rank, Mesh& mesh) {
    if (rank == 1) {
      std::this_thread::sleep_for(300ms);  // The rank does other work.
      return;
    }
    std::vector<float> data(4);
    const Status status =
        Collectives(mesh, 1, {.time = 50ms}).all_reduce(DType::kFloat32, Reduction::kSum, bytes(data));
    EXPECT_NE(status.message().find("waited 0.05"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("all_reduce (number 1)"), std::string::npos);
    EXPECT_NE(status.message().find("for rank 1"), std::string::npos);
    EXPECT_NE(status.message().find("timeout="), std::string::npos);
  });
}

TEST(Failures, ARankThatIsGoneIsNamedByAll) {
  std::latch told(2);  // A worker keeps a broken mesh.
  with_ranks(3, [&](int rank, Mesh& mesh) {
    if (rank == 2) return;
    std::vector<float> data(1'000'000);
    Status status = Collectives(mesh, 1, kLimits).all_reduce(DType::kFloat32, Reduction::kSum, bytes(data));
    EXPECT_NE(status.message().find("the worker of rank 2 is gone"), std::string::npos) << status.message();
    told.arrive_and_wait();
  });
}

TEST(Failures, AnInterruptedOpEndsAtOnce) {
  with_ranks(2, [](int rank, Mesh& mesh) {
    std::vector<float> data(4);
    OpLimits limits = kLimits;
    if (rank == 0) limits.interrupted = [] { return true; };
    const Status status = Collectives(mesh, 1, limits).broadcast(DType::kFloat32, 1 - rank, bytes(data));
    EXPECT_NE(status.message().find("gave up"), std::string::npos) << status.message();
  });
}

TEST(Failures, WrongArgumentsBreakNothingButTheirCall) {
  with_ranks(2, [](int rank, Mesh& mesh) {
    std::vector<float> data(4);
    EXPECT_NE(Collectives(mesh, 1, kLimits).broadcast(DType::kFloat32, 2, bytes(data)).message().find("no rank 2"),
              std::string::npos);
    EXPECT_FALSE(Collectives(mesh, 1, kLimits).all_reduce(DType::kFloat32, Reduction::kBor, bytes(data)).ok());
    EXPECT_FALSE(send(mesh, DType::kFloat32, bytes(data), rank, 0, kLimits).ok());
    const std::vector<uint64_t> sizes{8, 9};
    EXPECT_FALSE(
        Collectives(mesh, 1, kLimits).all_to_all(DType::kFloat32, bytes(data), sizes, bytes(data), sizes).ok());
    EXPECT_OK(Collectives(mesh, 1, kLimits).barrier());
  });
}

TEST(Joining, StrangersAreSentAway) {
  const auto all = listeners(2);
  // One peer sends nonsense, another does not know the secret.
  int noise = -1;
  ASSERT_TRUE(remote::connect_tcp(all[0]->address(), remote::Deadline(5s), &noise).ok());
  const std::vector<char> rubbish(100, 'x');
  ASSERT_EQ(::send(noise, rubbish.data(), rubbish.size(), MSG_NOSIGNAL), 100);
  std::thread first([&] {
    Mesh mesh(0, 2);
    EXPECT_OK(join(*all[0], plan_of(0, all), {.time = 20s}, mesh));
  });
  GroupPlan thief = plan_of(1, all);
  thief.secret[3] ^= 1;
  Mesh mesh(1, 2);
  const Status refused = join(*all[1], thief, {.time = 5s}, mesh);
  EXPECT_NE(refused.message().find("refused rank 1"), std::string::npos) << refused.message();
  EXPECT_OK(join(*all[1], plan_of(1, all), {.time = 20s}, mesh));
  first.join();
  ::close(noise);
}

// Ranks 0 and 2 need only each other; rank 1 connects later, to both.
TEST(Joining, InSteps) {
  const auto all = listeners(3);
  std::vector<std::unique_ptr<Mesh>> meshes(3);
  for (int rank = 0; rank < 3; ++rank) meshes[rank] = std::make_unique<Mesh>(rank, 3);
  const auto join_with = [&](int rank, const std::vector<int>& others) {
    GroupPlan plan = plan_of(rank, all);
    for (int other = 0; other < 3; ++other) {
      if (std::ranges::find(others, other) == others.end()) plan.addresses[other].port = 0;
    }
    EXPECT_OK(join(*all[rank], plan, {.time = 20s}, *meshes[rank]));
  };
  std::vector<int32_t> data{42}, got{0};
  std::thread zero([&] {
    join_with(0, {2});
    EXPECT_OK(send(*meshes[0], DType::kInt32, bytes(data), 2, 0, kLimits));
    EXPECT_FALSE(meshes[0]->has(1));
    join_with(0, {1, 2});
    EXPECT_OK(Collectives(*meshes[0], 1, kLimits).barrier());
  });
  join_with(2, {0});
  int from = 0;
  EXPECT_OK(receive(*meshes[2], DType::kInt32, bytes(got), &from, 0, kLimits));
  EXPECT_EQ(got, data);
  std::thread one([&] {
    join_with(1, {0, 2});
    EXPECT_OK(Collectives(*meshes[1], 1, kLimits).barrier());
  });
  join_with(2, {0, 1});
  EXPECT_OK(Collectives(*meshes[2], 1, kLimits).barrier());
  zero.join();
  one.join();
}

TEST(Joining, WhoIsMissingIsNamed) {
  const auto all = listeners(3);
  Mesh mesh(0, 3), other(1, 3);
  const Status status = join(*all[0], plan_of(0, all), {.time = 50ms}, mesh);
  EXPECT_NE(status.message().find("for those of ranks 1, 2, which did not connect in time"), std::string::npos)
      << status.message();
  GroupPlan plan = plan_of(1, all);
  plan.addresses[0].port = 1;  // No process listens there.
  EXPECT_NE(join(*all[1], plan, {.time = 5s}, other).message().find("cannot reach the worker of rank 0 at 127.0.0.1:1"),
            std::string::npos);
}

// A message that no receive asked for counts against the session's memory before it arrives.
TEST(Limits, AMessageThatSaysItHasALotIsNotAllocated) {
  const auto memory = CachingAllocator::create(make_anonymous_source(), uint64_t{1} << 20);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  Mesh mesh(0, 2, {.memory = memory.get()});
  mesh.add(1, ends[0]);
  const Label unasked = message_label(DType::kUInt8, 1, uint64_t{100} << 30);
  // As in worker/collectives/mesh.cpp.
  struct [[gnu::packed]] {
    uint32_t magic = 0x4D435254;
    uint8_t kind, op, dtype, reduction;
    int32_t root;
    uint32_t reserved = 0;
    uint64_t sequence, count, nbytes;
  } header;
  header.kind = unasked.kind;
  header.op = unasked.op;
  header.dtype = unasked.dtype;
  header.reduction = unasked.reduction;
  header.root = unasked.root;
  header.sequence = unasked.sequence;
  header.count = unasked.count;
  header.nbytes = uint64_t{100} << 30;
  ASSERT_EQ(::send(ends[1], &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  // While no receive asks for anything, the message waits there.
  for (int i = 0; i < 3; ++i) mesh.drive(mesh.wakes());
  EXPECT_OK(mesh.status());
  // Messages after it cannot be read.
  std::vector<uint8_t> data(8);
  int from = 1;
  const Status status = receive(mesh, DType::kUInt8, bytes(data), &from, 2, kLimits);
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory) << status.message();
  for (const char* part : {"for what rank 1 sends; ", "107374182400 bytes"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_FALSE(memory->overcharged());
  ::close(ends[1]);
}

TEST(Limits, WhatIsKeptCountsUntilItIsTaken) {
  const auto memory = CachingAllocator::create(make_anonymous_source(), uint64_t{1} << 20);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  Mesh mesh(0, 2, {.memory = memory.get()}), other(1, 2);
  mesh.add(1, ends[0]);
  other.add(0, ends[1]);
  std::vector<uint8_t> large(700'000, 5), got(large.size());
  std::thread sender([&] {
    EXPECT_OK(send(other, DType::kUInt8, bytes(large), 0, 1, kLimits));
    EXPECT_OK(send(other, DType::kUInt8, bytes(large), 0, 2, kLimits));
  });
  for (int i = 0; i < 5; ++i) mesh.drive(mesh.wakes());
  EXPECT_FALSE(memory->charge(500'000));  // The first message is stored, and the second one waits for memory.
  int from = 1;
  for (const uint64_t tag : {1, 2}) {
    std::ranges::fill(got, 0);
    EXPECT_OK(receive(mesh, DType::kUInt8, bytes(got), &from, tag, kLimits));
    EXPECT_EQ(got, large);
  }
  sender.join();
  EXPECT_TRUE(memory->charge(1'000'000));
}

// An error that is sent instead of a copy.
TEST(Limits, AnErrorCountsWhileItIsStored) {
  constexpr uint64_t kLimit = uint64_t{1} << 20;
  const auto memory = CachingAllocator::create(make_anonymous_source(), kLimit);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  Mesh mesh(0, 2, {.memory = memory.get()}), other(1, 2);
  mesh.add(1, ends[0]);
  other.add(0, ends[1]);
  const std::string text = "IndexError\nindex 9 is out of bounds";
  const auto send_error = [&](uint64_t tag) {
    Label label = message_label(DType::kUInt8, tag, text.size());
    label.op = static_cast<uint8_t>(CollectiveOp::kSkipped);
    const std::array<Outgoing, 1> message{{{0, label, std::as_bytes(std::span(text))}}};
    EXPECT_OK(other.exchange(message, {}, kLimits));
    for (int i = 0; i < 3; ++i) mesh.drive(mesh.wakes());
    EXPECT_OK(mesh.status());
  };
  const auto receive_error = [&](uint64_t tag) {
    std::vector<uint8_t> data(8);
    int from = 1;
    return receive(mesh, DType::kUInt8, bytes(data), &from, tag, kLimits).exception_type();
  };
  send_error(1);
  EXPECT_FALSE(memory->charge(kLimit));
  EXPECT_TRUE(memory->charge(kLimit - text.size()));
  EXPECT_EQ(receive_error(1), "IndexError");
  EXPECT_TRUE(memory->charge(text.size()));
  send_error(2);  // Without memory it waits for a receive.
  EXPECT_EQ(receive_error(2), "IndexError");
  EXPECT_OK(mesh.status());
}

}  // namespace
}  // namespace torch_remote::worker
