// Chunks of a capture, after a file header and an Info chunk of this build. Their checksums are corrected first, so
// that damage reaches the code after the check, unless the first byte of the input is 1. Captures that the reader
// accepts must be consistent.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "remote/capture/capture.h"
#include "remote/capture/capture_format.h"
#include "remote/capture/capture_writer.h"
#include "remote/wire/wire.h"
#include "tests/libfuzzer/fuzzer.h"
#include "tests/libfuzzer/ignore_signatures.h"

namespace torch_remote::fuzzers {
namespace {

using Bytes = std::vector<std::byte>;

Bytes contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

capture::ChunkHeader header_at(const Bytes& bytes, size_t at) {
  capture::ChunkHeader header;
  std::memcpy(&header, bytes.data() + at, sizeof(header));
  return header;
}

// A capture without messages and without the End chunk.
Bytes make_beginning() {
  std::string path = (std::filesystem::temp_directory_path() / "captures_XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) wrong("no temporary file");
  ::close(file);
  std::shared_ptr<remote::CaptureWriter> writer;
  if (!remote::CaptureWriter::open({path}, &writer).ok()) wrong("no capture");
  writer.reset();
  Bytes bytes = contents(path);
  std::filesystem::remove(path);
  const auto info = header_at(bytes, sizeof(capture::FileHeader));
  bytes.resize(sizeof(capture::FileHeader) + capture::chunk_bytes(info.control, info.attachment));
  return bytes;
}

void fix_program(Bytes& bytes, size_t at) {
  while (bytes.size() - at >= sizeof(capture::ChunkHeader)) {
    auto header = header_at(bytes, at);
    const size_t rest = bytes.size() - at;
    if (header.attachment > rest || header.control > rest) return;
    const uint64_t size = capture::chunk_bytes(header.control, header.attachment);
    if (size > rest) return;
    const size_t behind = capture::chunk_bytes(header.control, 0);
    ignore_signatures({reinterpret_cast<uint8_t*>(bytes.data() + at + behind), header.attachment});
    header.checksum = wire::crc32c(bytes.data() + at + sizeof(header), size - sizeof(header));
    std::memcpy(bytes.data() + at, &header, sizeof(header));
    header.header_checksum =
        wire::crc32c(bytes.data() + at + capture::kHeaderChecked, sizeof(header) - capture::kHeaderChecked);
    std::memcpy(bytes.data() + at, &header, sizeof(header));
    at += size;
  }
}

void check_event(const remote::CaptureEvent& event) {
  if (const auto* load = std::get_if<remote::ProgramEvent>(&event.what)) {
    if (!ir::verify(load->program->graph).ok()) wrong("a program that does not verify");
    if (load->program->source && !ir::verify(*load->program->source).ok()) wrong("a source that does not verify");
  } else if (const auto* run = std::get_if<remote::RunEvent>(&event.what)) {
    if (run->params.size() != run->program->graph.params) wrong("a run with too few or too many parameters");
    if (run->inputs.size() != run->program->inputs.size()) wrong("a run with too few or too many inputs");
  } else if (const auto* read = std::get_if<remote::ReadEvent>(&event.what)) {
    uint8_t sum = 0;
    for (const std::byte byte : read->bytes) sum ^= static_cast<uint8_t>(byte);  // all bytes must be readable
    [[maybe_unused]] static volatile uint8_t sink;
    sink = sum;
  }
}

bool read_all(remote::CaptureReader& reader, size_t* events) {
  for (*events = 0;; ++*events) {
    std::optional<remote::CaptureEvent> event;
    if (!reader.next(&event).ok()) return false;
    if (!event) return true;
    check_event(*event);
  }
}

}  // namespace
}  // namespace torch_remote::fuzzers

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote;
  using namespace torch_remote::fuzzers;
  static const Bytes beginning = make_beginning();
  if (size == 0) return count_outcome(false);
  Bytes bytes = beginning;
  const auto chunks = std::as_bytes(std::span(data + 1, size - 1));
  bytes.insert(bytes.end(), chunks.begin(), chunks.end());
  if (data[0] != 1) fix_program(bytes, beginning.size());
  std::unique_ptr<remote::CaptureReader> reader;
  if (!remote::CaptureReader::parse(std::move(bytes), &reader).ok()) return count_outcome(false);
  size_t events = 0, again = 0;
  const bool whole = read_all(*reader, &events);
  reader->rewind();
  if (read_all(*reader, &again) != whole || again != events) wrong("read again, it is another one");
  return count_outcome(whole);
}
