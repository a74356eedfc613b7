// Two tenants of one worker: the second one guesses the first one's buffers. Arguments: a worker's socket, the number
// of guesses, a seed. Prints how many guesses were made and how many read something.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "remote/client/client.h"
#include "remote/providers/provider.h"

namespace remote = torch_remote::remote;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const long guesses = std::atol(argv[2]);
  std::unique_ptr<remote::WorkerHandle> workers[2];
  std::unique_ptr<remote::Client> clients[2];
  for (int i = 0; i < 2; ++i) {
    if (const auto status = remote::connect_unix_worker(argv[1], &workers[i]); !status) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 1;
    }
    if (const auto status = remote::Client::connect(workers[i]->take_transport(), {}, {}, &clients[i]); !status) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 1;
    }
  }
  constexpr int kBuffers = 1000;
  uint64_t last = 0;
  for (int i = 0; i < kBuffers; ++i) {
    if (!clients[0]->upload(64, [](std::byte* to) { std::fill_n(to, 64, std::byte{42}); }, &last)) return 1;
  }
  std::mt19937_64 random(std::strtoull(argv[3], nullptr, 10));
  long reads = 0;
  for (long i = 0; i < guesses; ++i) {
    const uint64_t guess = i % 2 == 0 ? 1 + random() % (2 * uint64_t{kBuffers}) : random();
    const int64_t sizes[] = {1 + static_cast<int64_t>(random() % 64)}, strides[] = {1};
    remote::OpError error;
    const auto status = clients[1]->read(guess, 1, sizes, strides, 0, [](auto) {}, {}, &error);
    if (status.ok()) ++reads;
    if (status.code() == torch_remote::ErrorCode::kLost) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 1;
    }
  }
  std::byte seen{};
  const int64_t one[] = {1};
  remote::OpError error;
  const auto own = clients[0]->read(last, 1, one, one, 0, [&](auto bytes) { seen = bytes[0]; }, {}, &error);
  std::printf("%ld %ld\n", guesses, reads);
  return own.ok() && seen == std::byte{42} ? 0 : 1;
}
