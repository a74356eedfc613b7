#include "worker/targets/cuda/self_test/self_test.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "ir/graph.h"
#include "remote/transport/unix_transport.h"
#include "remote/wire/delta.h"
#include "worker/session/session.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/self_test/test_programs.h"

namespace torch_remote::worker::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// In the order of KernelFile.
constexpr std::array<const char*, kKernelFiles> kFiles = {
    "random", "scan",      "sort",   "index", "select", "fill", "attention", "image", "rnn",
    "pointwise", "search", "pair",   "bag",   "grid",   "complex", "ctc",    "margin", "interpret"};

constexpr uint64_t kFirstResult = 100;                 // Buffer id of a program's first result.
constexpr std::chrono::seconds kWaitForOtherRank{30};  // Then the NCCL row fails.
constexpr int kOldestCuda = 12000;                     // In the format of cuDriverGetVersion: CUDA 12.0.

// Half-precision bits as a number; no NaN or infinity is expected.
double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits >> 15) != 0 ? -size : size;
}

double value_at(std::span<const std::byte> bytes, size_t index, ir::DType dtype) {
  if (dtype == ir::DType::kInt64) {
    int64_t value = 0;
    std::memcpy(&value, &bytes[index * sizeof(value)], sizeof(value));
    return static_cast<double>(value);
  }
  if (dtype == ir::DType::kFloat16) {
    uint16_t bits = 0;
    std::memcpy(&bits, &bytes[index * sizeof(bits)], sizeof(bits));
    return half_value(bits);
  }
  float value = 0;
  std::memcpy(&value, &bytes[index * sizeof(value)], sizeof(value));
  return value;
}

// Whether the bytes are the expected numbers. The error names the first difference.
Status compare(const TestProgram& program, std::span<const std::byte> bytes) {
  for (size_t i = 0; i < program.expected.size(); ++i) {
    const double got = value_at(bytes, i, program.dtype), expected = program.expected[i];
    if (std::abs(got - expected) <= program.tolerance * std::max(1.0, std::abs(expected))) continue;  // False for NaN.
    return Status::internal("element " + std::to_string(i) + " of the result is " + std::to_string(got) +
                            " instead of " + std::to_string(expected) +
                            "; the kernel or library computes wrong numbers on this GPU: report it with the bundle of "
                            "torch-remote doctor --gpu");
  }
  return {};
}

// Opens a GPU. Openers take a transport, which GPUs do not use.
Status open_gpu(const DeviceOpener& open, const DeviceOptions& options, OpenDevice* opened) {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) return system_error("socketpair");
  const std::unique_ptr<remote::Transport> transport =
      remote::make_unix_transport(sockets[0], remote::MemoryAccess::kReadOnly);
  const Status status = open(*transport, options, [] { return tr_client_activity{}; }, opened);
  close(sockets[1]);
  return status;
}

// Runs one program in a session of its own. `runners` are the session's.
Status run_in_session(const TestProgram& program, Device& device, const Runners& runners) {
  ir::Graph graph;
  if (Status status = ir::parse_graph(program.text, &graph); !status.ok()) return status;
  if (Status status = ir::verify(graph); !status.ok()) return status;
  const std::vector<uint8_t> encoded = ir::encode_program(graph);
  const size_t item = ir::item_size(program.dtype);
  const auto bytes = std::make_shared<std::vector<std::byte>>(program.expected.size() * item);

  Session session(&device, &runners);
  session.load_program(1, std::as_bytes(std::span(encoded)));
  std::vector<uint64_t> inputs;
  for (const std::vector<std::byte>& input : program.inputs) {
    const auto copy = std::make_shared<std::vector<std::byte>>(input);
    inputs.push_back(inputs.size() + 1);
    if (Status status = session.buffers().upload(inputs.back(), *copy, copy); !status.ok()) return status;
  }
  remote::LastRun last;
  uint64_t sequence = 0;
  for (int run = 0; run < program.runs; ++run) {
    std::vector<uint8_t> params, bindings;
    remote::encode_params(program.params, last.params, params);
    remote::encode_bindings(inputs, kFirstResult, last.bindings, bindings);
    std::vector<int64_t> words;
    FailurePtr failure;
    RunRequest request;
    request.program = 1;
    request.first_result_id = kFirstResult;
    request.params = params;
    request.bindings = bindings;
    request.sequence = ++sequence;
    request.math_modes = program.math_modes;
    if (Status status = session.run(request, &words, &failure); !status.ok()) return status;
    if (failure) return failure->status;
    const auto count = static_cast<int64_t>(program.expected.size());
    const int64_t one = 1;
    const ReadRequest read{kFirstResult, static_cast<uint32_t>(item), {&count, 1}, {&one, 1}, 0};
    Session::Located located;
    failure = session.locate(read, ++sequence, &located);
    if (failure) return failure->status;
    const std::shared_ptr<QueuedRead> queued = session.copy_out(read, located, *bytes, bytes);
    if (Status status = device.wait(device.record()); !status.ok()) return status;
    session.settle();
    if (queued && queued->failure) return queued->failure->status;
  }
  return compare(program, *bytes);
}

class SelfTest {
 public:
  SelfTest(const DeviceOptions& options, const SelfTestReport& report) : options_(options), report_(report) {}

  // Runs `test` and reports its row. After the GPU is lost, reports kNotRun without running it. A status of
  // kInterrupted makes the row kSkipped.
  template <typename F>
  void row(const std::string& name, F&& test, const std::string& program = "") {
    SelfTestRow row{.name = name};
    if (!lost_.empty()) {
      row.state = SelfTestState::kNotRun;
      row.reason = lost_;
    } else {
      const auto began = Clock::now();
      const Status status = test();
      row.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
      if (!status.ok()) {
        const bool skipped = status.code() == ErrorCode::kInterrupted;
        row.state = skipped ? SelfTestState::kSkipped : SelfTestState::kFailed;
        row.reason = status.message();
        if (!skipped) row.program = program;
      }
      if (device_ != nullptr && device_->gpu().is_lost()) {
        lost_ = "the GPU was lost in \"" + name + "\": " + device_->gpu().status().message();
      }
    }
    report_(row);
    rows.push_back(std::move(row));
  }

  void open(const DeviceOpener& opener) {
    row("open cuda:0", [&] {
      const Status status = open_gpu(opener, options_, &opened_);
      if (!status.ok()) return status;
      device_ = dynamic_cast<CudaDevice*>(opened_.device.get());
      return device_ != nullptr ? Status() : Status::internal("cuda:0 is not a GPU");
    });
    if (device_ == nullptr) lost_ = "cuda:0 could not be opened";
  }

  void check_driver() {
    row("driver", [&] {
      const Driver& driver = device_->gpu().driver();
      int version = 0;
      Status status = to_status(driver, driver.driver_get_version(&version), "cuDriverGetVersion");
      if (!status.ok() || version >= kOldestCuda) return status;
      const std::string supported = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
      return Status(ErrorCode::kUnsupported, "the driver supports CUDA " + supported +
                                                 ", and kernels need 12.0; install NVIDIA's driver 525.60 or later");
    });
  }

  void load_image(KernelArchive archive, size_t file) {
    row(std::string("load ") + kFiles[file] + ".cu", [&] {
      const KernelImages images = find_images(archive, static_cast<KernelFile>(file), device_->gpu().sm());
      if (images.code.empty() && images.ptx.empty()) {
        return Status(ErrorCode::kUnsupported,
                      "there is no image for sm_" + std::to_string(device_->gpu().sm()) +
                          "; install a newer torch_remote");
      }
      const ContextGuard current(device_->gpu());
      Module module = nullptr;
      Status status = device_->kernels().load(images.code, images.ptx, &module);
      if (status.ok()) (void)device_->gpu().driver().module_unload(module);
      return status;
    });
  }

  void run(const TestProgram& program) {
    row(program.name,
        [&] {
          const Status status = run_checked(program);
          if (status.ok() || program.without.empty()) return status;
          return Status(status.code(), status.message() + "; without it " + program.without);
        },
        program.text);
  }

  // An all-reduce between cuda:0 and cuda:1, each on a thread of its own.
  void run_nccl(const std::function<DeviceOpener(const std::string& id)>& open, int gpus) {
    row("all-reduce (NCCL)", [&]() -> Status {
      if (gpus < 2) return {ErrorCode::kInterrupted, "there is one GPU"};
      if (opened_.collectives == nullptr) return {ErrorCode::kInterrupted, "this device has no collectives"};
      if (const Status status = opened_.collectives->open(); !status.ok()) {
        return {ErrorCode::kInterrupted, status.message()};  // NCCL is optional.
      }
      DeviceCollectives::Id id{};
      if (Status status = opened_.collectives->make_id(&id); !status.ok()) return status;
      const Clock::time_point deadline = Clock::now() + kWaitForOtherRank;
      Status other;
      std::thread thread([&] {
        OpenDevice second;
        other = open_gpu(open("1"), options_, &second);
        if (other.ok()) other = second.collectives->open();
        if (other.ok()) other = all_reduce(second, id, 1, deadline);
      });
      Status status = all_reduce(opened_, id, 0, deadline);
      thread.join();
      return status.ok() ? other : status;
    });
  }

  std::vector<SelfTestRow> rows;

 private:
  Status run_checked(const TestProgram& program) {
    Runners& all = opened_.runners;
    const auto found = std::ranges::find_if(
        all, [&](const std::unique_ptr<Runner>& runner) { return runner->name() == program.runner; });
    if (!program.runner.empty() && found == all.end()) {
      return {ErrorCode::kUnsupported, "this device has no runner \"" + program.runner + "\""};
    }
    if (!program.runner.empty()) {
      if (const std::string why = (*found)->why_accepts_none(); !why.empty()) return {ErrorCode::kUnsupported, why};
    }
    const uint64_t launched = device_->gpu().queue().counts().launched, without_kernel = groups_without_kernel();
    Status status;
    if (program.runner.empty()) {
      status = run_in_session(program, *device_, all);
    } else {
      Runners one;
      one.push_back(std::move(*found));
      status = run_in_session(program, *device_, one);
      *found = std::move(one.front());
    }
    if (!status.ok()) return status;
    if (program.needs_graph && device_->gpu().queue().counts().launched == launched) {
      return Status::internal("the numbers are right, but no CUDA graph was launched; report it");
    }
    if (program.needs_kernel && groups_without_kernel() != without_kernel) {
      return {ErrorCode::kUnsupported, "the numbers are right, but the group has no compiled kernel"};
    }
    return status;
  }

  uint64_t groups_without_kernel() const {
    uint64_t sum = 0;
    for (const std::unique_ptr<Runner>& runner : opened_.runners) sum += runner->groups_without_kernel();
    return sum;
  }

  // Rank r contributes r + 1 and 10 * (r + 1).
  static Status all_reduce(OpenDevice& opened, const DeviceCollectives::Id& id, int rank, Clock::time_point deadline) {
    const DeviceCollectives::KeepWaiting keep_waiting = [deadline] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Clock::now() < deadline;
    };
    std::shared_ptr<DeviceCollectives::Group> group;
    if (Status status = opened.collectives->join(id, rank, 2, keep_waiting, &group); !status.ok()) return status;
    Device& device = *opened.device;
    tr_buffer buffer{};
    const float first = static_cast<float>(rank + 1);
    const auto values = std::make_shared<std::array<float, 2>>(std::array{first, 10 * first});
    if (!device.memory().allocate(sizeof(*values), &buffer)) {
      return {ErrorCode::kOutOfMemory, "cuda: no memory for the all-reduce; end other processes on this GPU"};
    }
    device.copy_in(buffer.data, std::as_bytes(std::span(*values)), values);
    DeviceCollectives::Call call;
    call.input = buffer.data;
    call.output = buffer.data;
    call.input_bytes = call.output_bytes = sizeof(*values);
    Status status = group->run(call, keep_waiting, [] {});
    const auto result = std::make_shared<std::array<float, 2>>();
    if (status.ok()) {
      const int64_t count = 2, one = 1;
      device.copy_out({buffer.data, sizeof(float), {&count, 1}, {&one, 1}},
                      std::as_writable_bytes(std::span(*result)).data(), result);
      status = device.wait(device.record());
    }
    if (buffer.release != nullptr) buffer.release(buffer.owner);
    if (status.ok() && (*result)[0] == 3 && (*result)[1] == 30) return status;
    if (!status.ok()) return status;
    return Status::internal("the sums are " + std::to_string((*result)[0]) + " and " + std::to_string((*result)[1]) +
                            " instead of 3 and 30; set NCCL_DEBUG=INFO to see NCCL's log");
  }

  const DeviceOptions& options_;
  const SelfTestReport& report_;
  OpenDevice opened_;
  CudaDevice* device_ = nullptr;
  std::string lost_;  // Why later rows do not run; empty: they run.
};

}  // namespace

std::vector<SelfTestRow> self_test(const std::function<DeviceOpener(const std::string& id)>& open,
                                   const DeviceOptions& options, KernelArchive archive, int gpus,
                                   const SelfTestReport& report) {
  SelfTest test(options, report);
  test.open(open("0"));
  test.check_driver();
  for (size_t file = 0; file < kKernelFiles; ++file) test.load_image(archive, file);
  for (const TestProgram& program : test_programs()) test.run(program);
  test.run_nccl(open, gpus);
  return std::move(test.rows);
}

}  // namespace torch_remote::worker::cuda
