#include "worker/collectives/direct_copies.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

// Two ends in one process, each with threads of its own.
namespace torch_remote::worker {
namespace {

using ir::DType;
using namespace std::chrono_literals;
using Work = DirectCopies::Work;

const std::string kSecret(64, 'a');

class DirectCopiesTest : public testing::Test {
 protected:
  std::string plan(const std::string& answer, const std::string& secret = kSecret) const {
    return secret + "\nremote:0\nremote:1\n" + answer.substr(1);
  }
  // Returns the answer that the other end gets.
  std::string connect(int64_t pair, const std::string& plan) {
    std::promise<std::string> answer;
    Work work;
    const Status status =
        there.connect(pair, plan, nullptr, [&](const std::string& text) { answer.set_value(text); }, &work);
    EXPECT_TRUE(status.ok()) << status.message();
    std::string text = answer.get_future().get();
    if (work) work->wait(nullptr);
    return text;
  }
  void meet(int64_t pair = 1) {
    const std::string address = here.listen(pair);
    ASSERT_EQ(address.substr(0, 11), "+127.0.0.1:") << address;
    Work work;
    const Status status = here.accept(pair, plan(address), nullptr, &work);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(connect(pair, plan(address)), "+over the network");
    work->wait(nullptr);
  }
  static Work send(DirectCopies& end, int64_t number, const std::vector<float>& values, int64_t pair = 1) {
    Work work;
    EXPECT_TRUE(
        end.send(pair, number, DType::kFloat32, std::as_bytes(std::span(values)), nullptr, nullptr, &work).ok());
    return work;
  }
  static Work receive(DirectCopies& end, int64_t number, std::vector<float>& values, int64_t pair = 1) {
    Work work;
    const Status status =
        end.receive(pair, number, DType::kFloat32, std::as_writable_bytes(std::span(values)), nullptr, nullptr, &work);
    EXPECT_TRUE(status.ok()) << status.message();
    return work;
  }
  static Status finish(const Work& work) {
    work->wait(nullptr);
    return work->status();
  }
  static std::vector<float> numbers(size_t count, float first) {
    std::vector<float> all(count);
    std::iota(all.begin(), all.end(), first);
    return all;
  }

  DirectCopies here{"127.0.0.1", nullptr}, there{"127.0.0.1", nullptr};
};

TEST_F(DirectCopiesTest, GoBothWaysAtOnceAndInOrder) {
  meet();
  const size_t count = 5'000'000;  // More than the kernel buffers.
  const std::vector<float> up = numbers(count, 1), down = numbers(count, 2), small = numbers(3, 7);
  std::vector<float> got_up(count), got_down(count), got_small(3), got_nothing;
  const Work sent[] = {send(here, 1, up), send(there, 2, down), send(here, 3, small), send(here, 4, {})};
  const Work came[] = {receive(here, 2, got_down), receive(there, 1, got_up), receive(there, 3, got_small),
                       receive(there, 4, got_nothing)};
  for (const Work& work : came) EXPECT_TRUE(finish(work).ok()) << work->status().message();
  for (const Work& work : sent) EXPECT_TRUE(finish(work).ok());
  EXPECT_TRUE(got_up == up);
  EXPECT_TRUE(got_down == down);
  EXPECT_EQ(got_small, small);
}

TEST_F(DirectCopiesTest, WhatNobodyAsksForStaysWithItsSender) {
  meet();
  const std::vector<float> values = numbers(25'000'000, 1);                // 100 MB, of which sockets buffer a few.
  const Work sent = send(here, 1, values), back = send(there, 2, values);  // Both ends check what they can do.
  std::this_thread::sleep_for(500ms);
  EXPECT_FALSE(sent->done());
  EXPECT_FALSE(back->done());
  std::vector<float> got(values.size()), got_back(values.size());
  EXPECT_TRUE(finish(receive(there, 1, got)).ok());
  EXPECT_TRUE(finish(receive(here, 2, got_back)).ok());
  EXPECT_TRUE(finish(sent).ok());
  EXPECT_TRUE(finish(back).ok());
  EXPECT_TRUE(got == values);
  EXPECT_TRUE(got_back == values);
}

TEST_F(DirectCopiesTest, OneThatIsLeftOutFailsAloneAndLikeItsCause) {
  meet();
  std::vector<float> missing(4), late(4), got(2);
  const Work waits = receive(there, 1, missing);
  here.send_failure(1, 1, {ErrorCode::kOpFailed, "index 9 is out of\nbounds", "IndexError"});
  const Status status = finish(waits);
  EXPECT_EQ(status.exception_type(), "IndexError");
  EXPECT_EQ(status.message(), "index 9 is out of\nbounds");
  here.send_failure(1, 2, {ErrorCode::kOpFailed, std::string(100'000, 'x'), ""});
  const std::vector<float> good = numbers(2, 3);
  const Work sent = send(here, 3, good);
  // The left-out copy arrived earlier, and no receive had asked for it.
  EXPECT_TRUE(finish(receive(there, 3, got)).ok());
  EXPECT_EQ(got, good);
  const Status kept = finish(receive(there, 2, late));
  EXPECT_EQ(kept.exception_type(), "RuntimeError");
  EXPECT_EQ(kept.message(), std::string(Mesh::kMostText, 'x'));
  EXPECT_TRUE(finish(sent).ok());
}

TEST_F(DirectCopiesTest, OneThatNobodyWantsIsDropped) {
  meet();
  const std::vector<float> unwanted = numbers(3'000'000, 1), good = numbers(2, 3);
  const Work sent[] = {send(here, 1, unwanted), send(here, 2, good)};
  there.drop(1, 1, DType::kFloat32, unwanted.size() * 4);
  there.drop(1, 3, DType::kFloat32, 16);
  here.send_failure(1, 3, {ErrorCode::kOpFailed, "neither end", ""});
  std::vector<float> got(2);
  EXPECT_TRUE(finish(receive(there, 2, got)).ok());
  EXPECT_EQ(got, good);
  for (const Work& work : sent) EXPECT_TRUE(finish(work).ok());
  here.close(1, false, nullptr);
  there.close(1, false, nullptr);
}

TEST_F(DirectCopiesTest, AnEndThatGoesIsNamedAndOnlyWhoReceivesFails) {
  meet();
  std::vector<float> missing(4);
  const std::vector<float> values = numbers(25'000'000, 1);
  const Work waits = receive(there, 1, missing), sent = send(there, 2, values);
  here.end();
  const Status status = finish(waits);
  EXPECT_NE(status.message().find("the worker of remote:0 is gone"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("direct copy (number 1)"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("rank"), std::string::npos) << status.message();
  EXPECT_TRUE(finish(sent).ok());
}

TEST_F(DirectCopiesTest, WhoDoesNotKnowTheSecretIsNotLetIn) {
  const std::string address = here.listen(1);
  Work work;
  ASSERT_TRUE(here.accept(1, plan(address), nullptr, &work).ok());
  const std::string answer = connect(1, plan(address, std::string(64, 'b')));
  EXPECT_EQ(answer[0], '-');
  EXPECT_NE(answer.find("remote:0"), std::string::npos) << answer;
  EXPECT_FALSE(work->done());
  EXPECT_EQ(connect(1, plan(address)), "+over the network");
  EXPECT_TRUE(finish(work).ok());
}

TEST_F(DirectCopiesTest, WorkersThatWaitForNoOthersSaySo) {
  DirectCopies alone("", nullptr);
  EXPECT_NE(alone.listen(1).find("--peer-host"), std::string::npos);
  std::string answer;
  Work work;
  const auto keep = [&answer](const std::string& text) { answer = text; };
  EXPECT_TRUE(alone.connect(1, plan(here.listen(1)), nullptr, keep, &work).ok());
  EXPECT_NE(answer.find("--peer-host"), std::string::npos);
  std::vector<float> values(1);
  EXPECT_FALSE(
      alone.receive(1, 1, DType::kFloat32, std::as_writable_bytes(std::span(values)), nullptr, nullptr, &work).ok());
}

TEST_F(DirectCopiesTest, APairIsLeftAtOnceOrWhenItIsDone) {
  const std::string address = here.listen(1);
  Work work;
  ASSERT_TRUE(here.accept(1, plan(address), nullptr, &work).ok());
  here.close(1, true, nullptr);  // No client connects.
  EXPECT_TRUE(work->done());
  meet(2);
  const std::vector<float> values = numbers(25'000'000, 1);
  std::vector<float> got(values.size());
  (void)send(here, 1, values, 2);
  const Work came = receive(there, 1, got, 2);
  here.close(2, false, nullptr);
  EXPECT_TRUE(finish(came).ok());
  EXPECT_TRUE(got == values);
}

TEST_F(DirectCopiesTest, DamagedPlansAreRefused) {
  for (const std::string& text : {std::string(), std::string("xy\na\nb\n127.0.0.1:1"), kSecret + "\na\nb\nnowhere:x"}) {
    Work work;
    (void)here.listen(1);
    EXPECT_FALSE(here.accept(1, text, nullptr, &work).ok()) << text;
    EXPECT_FALSE(there.connect(1, text, nullptr, [](const std::string&) {}, &work).ok()) << text;
  }
}

}  // namespace
}  // namespace torch_remote::worker
