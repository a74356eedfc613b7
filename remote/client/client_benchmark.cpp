// Measures what the client adds to a training step, and the cost of moving tensor bytes. Run it on an idle machine:
//   bazel run //remote/client:client_benchmark
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "remote/client/client.h"
#include "remote/testing/fake_worker.h"

namespace {
thread_local uint64_t allocations = 0;
}  // namespace

void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace torch_remote::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kOps = 3000;
constexpr int kWeights = 300;

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

struct Statistics {
  double minimum, median;
};
Statistics statistics(std::vector<double>& samples) {
  std::ranges::sort(samples);
  return {samples.front(), samples[samples.size() / 2]};
}

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// Records a training step. Every tenth op reads a weight, the others read the previous result. Some parameters change
// in each step (learning rate, seeds, step counts).
void record_step(ir::Trace& trace, int step, uint64_t previous) {
  const int64_t sizes[] = {64, 1024}, strides[] = {1024, 1};
  uint32_t last = 0;
  for (int i = 0; i < kOps; ++i) {
    trace.begin_record(static_cast<ir::Opcode>(i % 7), {static_cast<uint64_t>(i), i, 0});
    if (i % 10 == 0) {
      const uint64_t id =
          i % 500 == 0 && previous ? previous + static_cast<uint64_t>(i / 500) : static_cast<uint64_t>(1 + i / 10);
      last = trace.new_buffer_view(id, &trace, 1 << 18, ir::DType::kFloat32, sizes, strides, 0);
    } else {
      trace.use_view(last);
    }
    trace.use_view(last);
    trace.param(i % 30 == 0 ? static_cast<int64_t>(step) : int64_t{1});
    trace.param(i % 500 == 0 ? 1e-3 / (step + 1) : 0.9);
    const bool survives = i % 100 == 0;
    last = trace.new_buffer_view(0, survives ? &trace : nullptr, 1 << 18, ir::DType::kFloat32, sizes, strides, 0);
    trace.end_record();
  }
}

std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> unix_pair() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) std::abort();
  return {make_unix_transport(sockets[0]), make_unix_transport(sockets[1])};
}

Status build(const BuildRequest& request, std::vector<uint8_t>* program) {
  *program = FakeWorker::make_program(*request.trace);
  return {};
}

void benchmark_flush() {
  auto [a, b] = unix_pair();
  FakeWorker worker(std::move(b));
  worker.log_messages(false);
  std::unique_ptr<Client> client;
  check(Client::connect(std::move(a), build, {}, &client));
  ir::Trace trace;
  std::vector<double> samples;
  FlushInfo info;
  uint64_t first_result_id = 0, previous = 0, in_flush = 0;
  size_t params = 0, bytes = 0;
  for (int step = 0; step < 500; ++step) {
    record_step(trace, step, previous);
    params = trace.params.size();
    for (uint64_t i = 6; previous && i < 30; ++i) client->free(previous + i);
    const uint64_t allocated = allocations;
    const auto begin = Clock::now();
    check(client->flush(trace, &first_result_id, &info));
    const double took = microseconds(Clock::now() - begin);
    if (step >= 10) {
      samples.push_back(took);
      in_flush += allocations - allocated;
      bytes = std::max(bytes, info.bytes);
    }
    previous = first_result_id;
  }
  const Statistics s = statistics(samples);
  std::printf(
      "flush of a known trace: %d ops, %zu parameters: min %.1f us, median %.1f us, at most %zu bytes, %.2f "
      "allocations\n",
      kOps, params, s.minimum, s.median, bytes, static_cast<double>(in_flush) / static_cast<double>(samples.size()));
  OpError error;
  samples.clear();
  for (int i = 0; i < 300; ++i) {
    const auto begin = Clock::now();
    check(client->synchronize({}, &error));
    samples.push_back(microseconds(Clock::now() - begin));
  }
  const Statistics r = statistics(samples);
  std::printf("round trip: min %.1f us, median %.1f us\n", r.minimum, r.median);
}

// Measures one direction: `from` copies an array into an attachment, and the other end reads the bytes in place.
void benchmark_bulk(size_t size) {
  auto [a, b] = unix_pair();
  std::vector<std::byte> source(size, std::byte{1}), destination(size);
  std::vector<double> raw, upload, download, local;
  for (int i = 0; i < 20; ++i) {
    auto begin = Clock::now();
    std::memcpy(destination.data(), source.data(), size);
    local.push_back(microseconds(Clock::now() - begin));
    // Raw: a copy from an array into warm shared memory, which no transport can avoid.
    {
      AttachmentPtr memory = a->allocate(size);
      begin = Clock::now();
      std::memcpy(memory->bytes().data(), source.data(), size);
      raw.push_back(microseconds(Clock::now() - begin));
    }
    // Up: the worker uses the bytes in place.
    Frame frame;
    begin = Clock::now();
    {
      AttachmentPtr memory = a->allocate(size);
      std::memcpy(memory->bytes().data(), source.data(), size);
      check(a->send({}, {}, std::move(memory)));
    }
    check(b->receive(&frame, std::chrono::seconds(10)));
    upload.push_back(microseconds(Clock::now() - begin));
    // Down: the worker shares its memory, and the client copies the bytes out.
    AttachmentPtr held = frame.attachment;
    begin = Clock::now();
    check(b->send({}, {}, b->share(held->bytes().data(), size, held)));
    check(a->receive(&frame, std::chrono::seconds(10)));
    std::memcpy(destination.data(), frame.attachment->bytes().data(), size);
    download.push_back(microseconds(Clock::now() - begin));
    held = nullptr;
    frame = Frame();
    check(b->send({}, {}, nullptr));
    check(a->receive(&frame, std::chrono::seconds(10)));
    check(a->send({}, {}, nullptr));
    check(b->receive(&frame, std::chrono::seconds(10)));
  }
  const double bytes = static_cast<double>(size);
  const auto rate = [&](std::vector<double>& samples) { return bytes / statistics(samples).median / 1e3; };
  const double r = rate(raw), l = rate(local), u = rate(upload), d = rate(download);
  std::printf(
      "%zu MiB: memcpy %.2f GB/s, into shared memory %.2f, upload %.2f GB/s (%.0f %%), download %.2f GB/s (%.0f %%)\n",
      size >> 20, l, r, u, 100 * u / r, d, 100 * d / r);
}

}  // namespace
}  // namespace torch_remote::remote

int main() {
  torch_remote::remote::benchmark_flush();
  for (size_t size : {size_t{1} << 20, size_t{64} << 20}) torch_remote::remote::benchmark_bulk(size);
}
