// Reads damaged captures with correct checksums, so that the damage reaches the code that decodes messages. Runs for
// FUZZ_SECONDS if that is set, else over a fixed number of seeds, from a random seed or TORCH_REMOTE_TEST_SEED on.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ir/testing/fuzz.h"
#include "ir/testing/random_graph.h"
#include "remote/capture/capture.h"
#include "remote/capture/capture_format.h"
#include "remote/capture/session_writer.h"
#include "remote/wire/wire.h"

namespace torch_remote::remote {
namespace {

using ir::testing::Rng;
using Bytes = std::vector<std::byte>;

Bytes contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_random_session(Rng& rng, const std::string& path) {
  std::shared_ptr<CaptureWriter> writer;
  EXPECT_TRUE(CaptureWriter::open({path}, &writer).ok());
  SessionWriter session(std::move(writer));
  uint64_t next_id = 1;
  for (uint32_t number = 1; number <= 1 + rng() % 3; ++number) {
    const ir::Graph graph = ir::testing::random_graph(rng);
    session.load(number, rng() % 2 ? &graph : nullptr, graph);
    size_t inputs = 0;
    for (const ir::Buffer& buffer : graph.buffers) inputs += buffer.kind == ir::BufferKind::kInput;
    for (uint32_t run = 0; run < rng() % 4; ++run) {
      std::vector<int64_t> params(graph.params);
      for (int64_t& param : params) param = static_cast<int64_t>(rng() % 3 ? rng() % 100 : rng());
      std::vector<uint64_t> ids(inputs);
      for (uint64_t& id : ids) id = 1 + rng() % next_id;
      session.run(number, params, ids, next_id, {next_id});
      next_id += 10;
    }
    const Bytes bytes(rng() % 200);
    session.upload(next_id, bytes);
    const auto size = static_cast<int64_t>(bytes.size());
    session.read(next_id++, 1, std::vector<int64_t>{size}, std::vector<int64_t>{1}, 0, bytes);
  }
}

// The offsets of the chunks and of the end.
std::vector<size_t> chunks_of(const Bytes& bytes) {
  std::vector<size_t> places{sizeof(capture::FileHeader)};
  while (places.back() < bytes.size()) {
    capture::ChunkHeader header;
    std::memcpy(&header, bytes.data() + places.back(), sizeof(header));
    places.push_back(places.back() + capture::chunk_bytes(header.control, header.attachment));
  }
  return places;
}

void damage_bytes(Rng& rng, std::byte* begin, size_t size) {
  for (uint64_t count = 1 + rng() % 4; count > 0 && size > 0; --count) {
    std::byte& byte = begin[rng() % size];
    byte = rng() % 2 ? static_cast<std::byte>(rng()) : byte ^ std::byte{1} << rng() % 8;
  }
}

void mend_checksums(std::byte* chunk, size_t size) {
  capture::ChunkHeader header;
  std::memcpy(&header, chunk, sizeof(header));
  header.checksum = wire::crc32c(chunk + sizeof(header), size - sizeof(header));
  std::memcpy(chunk, &header, sizeof(header));
  header.header_checksum = wire::crc32c(chunk + capture::kHeaderChecked, sizeof(header) - capture::kHeaderChecked);
  std::memcpy(chunk, &header, sizeof(header));
}

Bytes damaged(Rng& rng, const Bytes& whole) {
  const std::vector<size_t> places = chunks_of(whole);
  Bytes result(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(places[0]));
  for (size_t i = 0; i + 1 < places.size(); ++i) {
    const uint64_t choice = rng() % 100;
    const size_t from = choice < 3 ? rng() % (places.size() - 1) : i;  // replaces the chunk with another one
    if (i > 0 && choice >= 97) continue;                               // removes the chunk
    Bytes chunk(whole.begin() + static_cast<ptrdiff_t>(places[from]),
                whole.begin() + static_cast<ptrdiff_t>(places[from + 1]));
    if (rng() % places.size() < 2) {
      damage_bytes(rng, chunk.data() + sizeof(capture::ChunkHeader), chunk.size() - sizeof(capture::ChunkHeader));
    }
    if (rng() % 50 == 0) damage_bytes(rng, chunk.data(), sizeof(capture::ChunkHeader));
    if (rng() % 200 != 0) mend_checksums(chunk.data(), chunk.size());
    result.insert(result.end(), chunk.begin(), chunk.end());
  }
  if (rng() % 20 == 0) result.resize(rng() % (result.size() + 1));
  return result;
}

// Reads everything and checks that accepted events are consistent.
Status read_all(Bytes bytes) {
  std::unique_ptr<CaptureReader> reader;
  if (Status status = CaptureReader::parse(std::move(bytes), &reader); !status) return status;
  for (;;) {
    std::optional<CaptureEvent> event;
    if (Status status = reader->next(&event); !status) return status;
    if (!event) return {};
    if (const auto* load = std::get_if<ProgramEvent>(&event->what)) {
      EXPECT_TRUE(ir::verify(load->program->graph).ok());
      if (load->program->source) {
        EXPECT_TRUE(ir::verify(*load->program->source).ok());
      }
    } else if (const auto* run = std::get_if<RunEvent>(&event->what)) {
      EXPECT_EQ(run->params.size(), run->program->graph.params);
      EXPECT_EQ(run->inputs.size(), run->program->inputs.size());
    }
  }
}

TEST(CaptureFuzz, DamagedCapturesGiveErrors) {
  const ir::testing::FuzzOptions options = ir::testing::fuzz_options();
  const auto end = std::chrono::steady_clock::now() + options.time.value_or(std::chrono::seconds(0));
  const auto more = [&](uint64_t seed) {
    return options.time.has_value() ? std::chrono::steady_clock::now() < end : seed < options.seed + 300;
  };
  std::string name = testing::TempDir() + "capture_fuzz_XXXXXX";
  ASSERT_GE(mkstemp(name.data()), 0);
  size_t tried = 0, accepted = 0;
  for (uint64_t seed = options.seed; more(seed) && !HasFailure(); ++seed) {
    SCOPED_TRACE("again with TORCH_REMOTE_TEST_SEED=" + std::to_string(seed));
    Rng rng(seed);
    write_random_session(rng, name);
    const Bytes whole = contents(name);
    const Status sound = read_all(whole);
    EXPECT_TRUE(sound.ok()) << sound.message();
    for (int i = 0; i < 100; ++i, ++tried) {
      const Status status = read_all(damaged(rng, whole));
      accepted += status.ok();
      if (!status.ok()) {
        EXPECT_TRUE(status.message().starts_with("remote: ")) << status.message();
      }
    }
  }
  std::filesystem::remove(name);
  std::printf("%zu captures, %zu of them accepted\n", tried, accepted);
  EXPECT_GT(tried, 100u);
  EXPECT_GT(accepted, tried / 100);  // otherwise only the container was ever damaged
}

}  // namespace
}  // namespace torch_remote::remote
