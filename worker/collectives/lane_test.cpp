#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "worker/collectives/collectives.h"
#include "worker/collectives/op_queue.h"
#include "worker/collectives/peers.h"

// Ranks are threads, each with one queue per group.
namespace torch_remote::worker {
namespace {

using ir::DType;
using namespace std::chrono_literals;

const OpLimits kLimits{.time = 600s};
using Work = std::shared_ptr<BackgroundWork>;
using Values = std::vector<int32_t>;

#define EXPECT_OK(expression)                       \
  do {                                              \
    const Status status_ = (expression);            \
    EXPECT_TRUE(status_.ok()) << status_.message(); \
  } while (false)

// A rank's end of a group.
class Member {
 public:
  Member(int rank, const std::vector<std::unique_ptr<PeerListener>>& listeners, std::function<void()> on_done = nullptr)
      : queue_(rank, static_cast<int>(listeners.size()), std::move(on_done)) {
    GroupPlan plan{rank, {}, std::vector<uint8_t>(32, 7)};
    for (const auto& listener : listeners) plan.addresses.push_back(listener->address());
    joined = queue_.connect([&listener = *listeners[static_cast<size_t>(rank)], plan](Mesh& mesh) {
      const Status status = join(listener, plan, kLimits, mesh);
      return status.ok() ? status : mesh.fail(status);
    });
  }

  Work send(int to, const Values& values, uint64_t tag = 0) {
    const auto bytes = std::as_bytes(std::span(values));
    return queue_.send({to, message_label(DType::kInt32, tag, bytes.size()), bytes}, kLimits, nullptr);
  }
  Work receive(int from, Values& values, uint64_t tag = 0) {
    const auto bytes = std::as_writable_bytes(std::span(values));
    return queue_.receive({from, message_label(DType::kInt32, tag, bytes.size()), bytes}, kLimits,
                          [this](int peer) { came_from = peer; });
  }
  Work sum(Values& values) {
    return queue_.add([&values, sequence = ++sequence_](Mesh& mesh) {
      return Collectives(mesh, sequence, kLimits)
          .all_reduce(DType::kInt32, Reduction::kSum, std::as_writable_bytes(std::span(values)));
    });
  }
  OpQueue& queue() { return queue_; }

  Work joined;
  int came_from = -2;

 private:
  OpQueue queue_;
  uint64_t sequence_ = 0;
};

std::vector<std::unique_ptr<PeerListener>> listeners(size_t size) {
  std::vector<std::unique_ptr<PeerListener>> all(size);
  for (auto& listener : all) EXPECT_TRUE(PeerListener::open("127.0.0.1", &listener).ok());
  return all;
}

void with_ranks(int size, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(f, rank);
  for (std::thread& thread : threads) thread.join();
}

void expect(const Work& work) {
  work->wait(nullptr);
  EXPECT_OK(work->status());
}

bool are_all(const Values& values, int32_t value) {
  return std::ranges::count(values, value) == static_cast<std::ptrdiff_t>(values.size());
}

constexpr size_t kMuch = 17 << 20;  // Number of values: more than a mesh stores and sockets buffer.

// Two ranks send large messages to each other in two groups, and use the groups for the first time in different orders.
TEST(Lane, GroupsDoNotWaitForEachOther) {
  const auto first = listeners(2), second = listeners(2);
  with_ranks(2, [&](int rank) {
    Member* group[2];
    std::unique_ptr<Member> a, b;
    const auto make = [&](int number) {
      (number == 0 ? a : b) = std::make_unique<Member>(rank, number == 0 ? first : second);
    };
    make(rank);  // Rank 0 begins with the first group, rank 1 with the second.
    make(1 - rank);
    group[0] = a.get();
    group[1] = b.get();
    const Values out(kMuch, rank);
    Values in(kMuch, -1), sum{rank + 1}, other{rank + 1};
    const Work sent = group[rank]->send(1 - rank, out);
    const Work summed = group[1 - rank]->sum(sum);
    expect(group[1 - rank]->receive(1 - rank, in));
    expect(sent);
    expect(group[rank]->sum(other));
    expect(summed);
    EXPECT_TRUE(are_all(in, 1 - rank));
    EXPECT_EQ(sum[0] + other[0], 6);
  });
}

TEST(Lane, ManyLargeMessagesBothWaysBeforeOneIsTaken) {
  const auto all = listeners(2);
  with_ranks(2, [&](int rank) {
    Member member(rank, all);
    std::vector<Values> out;
    for (int i = 0; i < 3; ++i) out.emplace_back(kMuch, 10 * rank + i);
    std::vector<Work> sent;
    for (const Values& values : out) sent.push_back(member.send(1 - rank, values));
    for (int i = 0; i < 3; ++i) {
      Values in(kMuch);
      expect(member.receive(1 - rank, in));
      EXPECT_TRUE(are_all(in, 10 * (1 - rank) + i));
    }
    for (const Work& work : sent) expect(work);
  });
}

// Rank 1 reaches the collective op only when it has the message that rank 0 sends after it.
TEST(Lane, MessagesPassCollectiveOpsThatWait) {
  const auto all = listeners(2);
  with_ranks(2, [&](int rank) {
    Member member(rank, all);
    Values sum{1}, data{42}, got{0};
    if (rank == 0) {
      const Work summed = member.sum(sum);
      expect(member.send(1, data));
      expect(member.receive(1, got));
      expect(summed);
    } else {
      expect(member.receive(kAnyPeer, got));
      EXPECT_EQ(member.came_from, 0);
      expect(member.send(0, data));
      expect(member.sum(sum));
    }
    EXPECT_EQ(got, data);
    EXPECT_EQ(sum[0], 2);
  });
}

TEST(Lane, MessagesKeepTheirOrderWhileTheRanksConnect) {
  const auto all = listeners(2);
  with_ranks(2, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(50ms);
    Member member(rank, all);
    if (rank == 0) {
      std::vector<Values> out;
      for (int i = 0; i < 200; ++i) out.push_back({i});
      std::vector<Work> sent;
      for (const Values& values : out) sent.push_back(member.send(1, values, 7));
      for (const Work& work : sent) expect(work);
    } else {
      for (int i = 0; i < 200; ++i) {
        Values in{-1};
        expect(member.receive(0, in, 7));
        EXPECT_EQ(in[0], i);
      }
    }
    member.queue().wait_all(nullptr);
  });
}

TEST(Lane, TellsWhenSomethingIsDoneThatNobodyWaitsFor) {
  const auto all = listeners(2);
  with_ranks(2, [&](int rank) {
    std::latch told(3);  // Connected, sent, received.
    Member member(rank, all, [&] { told.count_down(); });
    const Values out{rank};
    Values in{-1};
    const Work received = member.receive(1 - rank, in);
    const Work sent = member.send(1 - rank, out);
    told.wait();
    EXPECT_TRUE(received->done() && sent->done());
    EXPECT_EQ(in[0], 1 - rank);
  });
}

TEST(Lane, ItsEndEndsWhatIsNotDone) {
  const auto all = listeners(2);
  std::latch over(2);
  with_ranks(2, [&](int rank) {
    Values sum{1}, got{0};
    Work summed, second, received;
    {
      Member member(rank, all);
      expect(member.joined);
      if (rank == 0) {
        received = member.receive(1, got);
        summed = member.sum(sum);
        second = member.sum(sum);
      }
      over.arrive_and_wait();
    }
    if (rank != 0) return;
    for (const Work& work : {summed, second, received}) {
      ASSERT_TRUE(work->done());
      EXPECT_FALSE(work->status().ok());
    }
  });
}

TEST(Lane, AFailureIsThatOfAllThatGoesOn) {
  const auto all = listeners(2);
  with_ranks(2, [&](int rank) {
    Member member(rank, all);
    Values sum(rank == 0 ? 3 : 4), got{0};
    const Work received = member.receive(1 - rank, got);
    const Work summed = member.sum(sum);
    for (const Work& work : {summed, received}) {
      work->wait(nullptr);
      EXPECT_NE(work->status().message().find("all_reduce (number 1)"), std::string::npos) << work->status().message();
    }
    const Work late = member.sum(sum);
    late->wait(nullptr);
    EXPECT_EQ(late->status().message(), summed->status().message());
  });
}

}  // namespace
}  // namespace torch_remote::worker
