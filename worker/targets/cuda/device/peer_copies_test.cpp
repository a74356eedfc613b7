#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulated_driver.h"
#include "worker/collectives/direct_copies.h"
#include "worker/targets/cuda/device/cuda_device.h"

// Copies between the GPUs of two processes. Each process has its own driver, as sessions of a worker do. The second
// process reports its findings in its exit status.
namespace torch_remote::worker::cuda {
namespace {

using emulated::EmulatedDriver;
using PeerAccess = emulated::Options::PeerAccess;
using Floats = std::vector<float>;
using ir::DType;

constexpr int64_t kPair = 1;
constexpr uint64_t kKept = uint64_t{32} << 20;
constexpr size_t kLarge = (kKept >> 2) + 5;  // In floats; more than the limit on reused memory.

// One process's end: one of the two GPUs that both processes see.
class End {
 public:
  End(int channel, int rank, emulated::Options options) : channel_(channel), rank_(rank) {
    options.devices = 2;
    options.seed += static_cast<uint64_t>(rank);
    driver_ = std::make_unique<EmulatedDriver>(options);
    const Status status = CudaDevice::open(
        {.driver = driver_->driver(), .ordinal = rank, .kernels = {}, .peer_memory_limit = kKept}, &device_);
    EXPECT_TRUE(status.ok()) << status.message();
    copies_ = std::make_unique<DirectCopies>("127.0.0.1", nullptr, device_.get());
  }

  // Sends text to the other process, and receives text from it.
  void tell(const std::string& text) const {
    ASSERT_EQ(::send(channel_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  std::string hear() const {
    std::string text(4096, '\0');
    const ssize_t size = ::recv(channel_, text.data(), text.size(), 0);
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return text;
  }

  // Connects the two ends. Returns how bytes will travel.
  std::string meet() {
    DirectCopies::Work work;
    std::string way;
    const std::string head = std::string(64, 'a') + "\nremote:0\nremote:1\n";
    if (rank_ == 0) {
      const std::string address = copies_->listen(kPair).substr(1);
      EXPECT_TRUE(copies_->accept(kPair, head + address, nullptr, &work).ok());
      tell(address);
      way = hear();
    } else {
      const auto answered = [&way](const std::string& answer) { way = answer; };
      EXPECT_TRUE(copies_->connect(kPair, head + hear(), nullptr, answered, &work).ok());
    }
    work->wait(nullptr);
    if (rank_ == 1) tell(way);
    return way;
  }

  tr_buffer allocate(size_t count) {
    tr_buffer buffer{};
    EXPECT_TRUE(device_->memory().allocate(count * 4, &buffer));
    return buffer;
  }
  void free(const tr_buffer& buffer) { buffer.release(buffer.owner); }
  void upload(const tr_buffer& to, size_t count, float first) {
    const auto values = std::make_shared<Floats>(count);
    std::iota(values->begin(), values->end(), first);
    device_->copy_in(to.data, std::as_bytes(std::span(*values)), values);
  }
  // Whether the buffer holds `first`, `first` + 1, ...
  bool holds(const tr_buffer& buffer, size_t count, float first) {
    const auto values = std::make_shared<Floats>(count);
    const auto size = static_cast<int64_t>(count);
    const int64_t one = 1;
    device_->copy_out({buffer.data, 4, {&size, 1}, {&one, 1}}, reinterpret_cast<std::byte*>(values->data()), values);
    if (!device_->wait(device_->record()).ok()) return false;
    Floats expected(count);
    std::iota(expected.begin(), expected.end(), first);
    return *values == expected;
  }

  void send(int64_t number, const tr_buffer& buffer, size_t count) {
    EXPECT_TRUE(copies_->is_between_devices(kPair));
    EXPECT_TRUE(copies_->send_from(kPair, number, DType::kFloat32, buffer.data, count * 4, nullptr).ok());
  }
  Status receive(int64_t number, const tr_buffer& buffer, size_t count) {
    EXPECT_TRUE(copies_->is_between_devices(kPair));
    return copies_->receive_to(kPair, number, DType::kFloat32, buffer.data, count * 4, nullptr, nullptr);
  }

  EmulatedDriver& driver() { return *driver_; }
  CudaDevice& device() { return *device_; }
  DirectCopies& copies() { return *copies_; }
  void close() {
    copies_ = nullptr;
    device_ = nullptr;
    EXPECT_TRUE(driver_->findings().empty()) << driver_->findings()[0];
    EXPECT_EQ(driver_->leaks(), "");
  }

 private:
  const int channel_, rank_;
  std::unique_ptr<EmulatedDriver> driver_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<DirectCopies> copies_;
};

using Part = std::function<void(End& end)>;

// Runs each function in its own process, with its end of the connection.
void run_both(const emulated::Options& options, const Part& here, const Part& there) {
  int channels[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channels), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(channels[0]);
    {
      End end(channels[1], 1, options);
      there(end);
    }
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(channels[1]);
  {
    End end(channels[0], 0, options);
    here(end);
  }
  ::close(channels[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the other process failed";
}

class PeerCopies : public testing::TestWithParam<uint64_t> {
 protected:
  emulated::Options options() const { return {.seed = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(Seeds, PeerCopies, testing::Values(1, 7, 23));

TEST_P(PeerCopies, BytesGoFromDeviceToDeviceBothWays) {
  const std::vector<size_t> counts{1, 1000, (size_t{3} << 20) + 1, 0};
  const auto part = [&](End& end, int rank) {
    ASSERT_EQ(end.meet(), "+from GPU to GPU");
    const float own = rank == 0 ? 0 : 5, other = 5 - own;
    std::vector<tr_buffer> from, to;
    for (const size_t count : counts) {
      from.push_back(end.allocate(count));
      to.push_back(end.allocate(count));
      end.upload(from.back(), count, own);
    }
    ASSERT_TRUE(end.device().wait(end.device().record()).ok());
    auto before = end.driver().calls();
    for (size_t i = 0; i < counts.size(); ++i) {
      end.send(2 * static_cast<int64_t>(i) + 1 + rank, from[i], counts[i]);
      // A send takes the values at the time of the call.
      end.device().fill(from[i].data, std::byte{0x55}, counts[i] * 4);
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      const Status status = end.receive(2 * static_cast<int64_t>(i) + 2 - rank, to[i], counts[i]);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    auto after = end.driver().calls();
    for (const char* through_host : {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuLaunchHostFunc"}) {
      EXPECT_EQ(after[through_host], before[through_host]) << through_host;
    }
    // All small buffers are in one shared allocation.
    EXPECT_EQ(after["cuIpcOpenMemHandle"], before["cuIpcOpenMemHandle"] + 1);
    for (size_t i = 0; i < counts.size(); ++i) EXPECT_TRUE(end.holds(to[i], counts[i], other)) << counts[i];
    for (size_t i = 0; i < counts.size(); ++i) end.free(from[i]), end.free(to[i]);
    end.copies().close(kPair, false, nullptr);
    end.tell("left");
    EXPECT_EQ(end.hear(), "left");
    end.close();
  };
  run_both(options(), [&](End& end) { part(end, 0); }, [&](End& end) { part(end, 1); });
}

TEST_P(PeerCopies, LargeMemoryGoesWhenItWasRead) {
  run_both(
      options(),
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer from = end.allocate(kLarge);
        end.upload(from, kLarge, 1);
        ASSERT_TRUE(end.device().wait(end.device().record()).ok());
        const size_t before = end.driver().allocated();
        end.send(1, from, kLarge);
        EXPECT_GE(end.driver().allocated(), before + kLarge * 4);
        EXPECT_EQ(end.hear(), "read");
        end.free(from);
        end.copies().close(kPair, false, nullptr);  // Returns when the read was reported here, too.
        end.close();                                // Frees what was read; the reader has closed it.
      },
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer to = end.allocate(kLarge);
        EXPECT_TRUE(end.receive(1, to, kLarge).ok());
        EXPECT_TRUE(end.holds(to, kLarge, 1));
        end.free(to);
        end.copies().close(kPair, false, nullptr);
        end.tell("read");
        end.close();
      });
}

TEST_P(PeerCopies, OnesThatAreLeftOutOrDroppedStopNoOthers) {
  run_both(
      options(),
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer from = end.allocate(100);
        end.upload(from, 100, 3);
        end.copies().send_failure(kPair, 1, {ErrorCode::kOpFailed, "index 9 is out of bounds", "IndexError"});
        end.send(2, from, 100);
        end.copies().send_failure(kPair, 3, {ErrorCode::kOpFailed, "neither end", ""});
        end.send(4, from, 100);
        end.free(from);
        end.copies().close(kPair, false, nullptr);  // Returns because everything was read or dropped.
        end.tell("left");
        EXPECT_EQ(end.hear(), "left");
        end.close();
      },
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer to = end.allocate(100);
        const Status left_out = end.receive(1, to, 100);
        EXPECT_EQ(left_out.exception_type(), "IndexError");
        EXPECT_EQ(left_out.message(), "index 9 is out of bounds");
        end.copies().drop(kPair, 1, DType::kFloat32, 400);  // As sessions do for sends that failed.
        end.copies().drop(kPair, 2, DType::kFloat32, 400);
        end.copies().drop(kPair, 3, DType::kFloat32, 400);
        EXPECT_TRUE(end.receive(4, to, 100).ok());
        EXPECT_TRUE(end.holds(to, 100, 3));
        end.free(to);
        end.copies().close(kPair, false, nullptr);
        end.tell("left");
        EXPECT_EQ(end.hear(), "left");
        end.close();
      });
}

TEST_P(PeerCopies, WithoutMemoryForItTheReceiverFailsAndOthersGoOn) {
  run_both(
      options(),
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer from = end.allocate(kLarge);
        end.device().fill(from.data, std::byte{0}, kLarge * 4);
        end.driver().fail_allocation(1);
        end.send(1, from, kLarge);
        end.upload(from, 100, 3);
        end.send(2, from, 100);
        end.copies().close(kPair, false, nullptr);
        end.tell("left");
        EXPECT_EQ(end.hear(), "left");
        EXPECT_TRUE(end.device().wait(end.device().record()).ok());
      },
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer to = end.allocate(kLarge);
        const Status status = end.receive(1, to, kLarge);
        EXPECT_EQ(status.exception_type(), "OutOfMemoryError");
        EXPECT_NE(status.message().find("a copy to another device"), std::string::npos) << status.message();
        EXPECT_TRUE(end.receive(2, to, 100).ok());
        EXPECT_TRUE(end.holds(to, 100, 3));
        end.copies().close(kPair, false, nullptr);
        end.tell("left");
        EXPECT_EQ(end.hear(), "left");
      });
}

TEST_P(PeerCopies, AnEndThatGoesIsNamed) {
  run_both(
      options(),
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        const tr_buffer to = end.allocate(100);
        const Status status = end.receive(1, to, 100);
        EXPECT_NE(status.message().find("the worker of remote:1 is gone"), std::string::npos) << status.message();
        EXPECT_TRUE(end.device().wait(end.device().record()).ok());
      },
      [](End& end) {
        ASSERT_EQ(end.meet(), "+from GPU to GPU");
        ::_exit(0);
      });
}

TEST_P(PeerCopies, WhereMemoryCannotBeReadBothEndsGoThroughTheHost) {
  for (const auto& [others, why] : {std::pair(PeerAccess::kRefused, "peer access is not supported"),
                                    std::pair(PeerAccess::kGarbled, "returned wrong bytes")}) {
    emulated::Options given = options();
    given.peer_access = others;
    const auto part = [why = std::string(why)](End& end) {
      const std::string way = end.meet();
      EXPECT_EQ(way.find("+over the network, as remote:0 does not read memory of remote:1: "), 0u) << way;
      EXPECT_NE(way.find(why), std::string::npos) << way;
      EXPECT_FALSE(end.copies().is_between_devices(kPair));
      end.tell("met");
      EXPECT_EQ(end.hear(), "met");
    };
    run_both(given, part, part);
  }
}

}  // namespace
}  // namespace torch_remote::worker::cuda
