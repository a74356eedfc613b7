// Tests what only the Unix transport handles: bytes from a socket, and descriptors and shared memory from a hostile or
// broken peer.
#include "remote/transport/unix_transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "remote/transport/transport.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;

constexpr auto kLong = 60s;
Transport* volatile abandoned;  // keeps the object reachable for the leak checker

template <class T>
void append(Bytes& out, const T& value) {
  const auto* p = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), p, p + sizeof(T));
}

wire::Header header_of(const Bytes& control, wire::Type type, uint16_t flags = 0) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.flags = flags;
  header.length = static_cast<uint32_t>(control.size());
  header.checksum = wire::crc32c(control.data(), control.size());
  return header;
}

Bytes frame_of(const Bytes& control, wire::Type type = wire::Type::kRun) {
  Bytes bytes;
  append(bytes, header_of(control, type));
  bytes.insert(bytes.end(), control.begin(), control.end());
  return bytes;
}

// Messages of the transport itself; the op codes are those of shared_memory.h.
Bytes segment_message(uint32_t op, std::vector<uint64_t> words) {
  Bytes control;
  append(control, op);
  append(control, static_cast<uint32_t>(words.size()));
  for (uint64_t word : words) append(control, word);
  return frame_of(control, wire::Type::kTransport);
}
Bytes announce(uint64_t number, uint64_t size) { return segment_message(1, {number, size}); }
Bytes give_back(uint64_t token) { return segment_message(2, {token}); }
Bytes retire(uint64_t number) { return segment_message(3, {number}); }

// A frame with an attachment in a segment, or inline with flags 1.
Bytes attached(uint32_t segment, uint64_t offset, uint64_t size, uint32_t flags = 0) {
  Bytes bytes;
  append(bytes, header_of({}, wire::Type::kUpload, wire::kAttachment));
  for (uint64_t word : {size, offset, uint64_t{9}}) append(bytes, word);
  append(bytes, segment);
  append(bytes, flags);
  return bytes;
}

int memory_file(size_t size, int seals) {
  const int descriptor = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(descriptor, static_cast<off_t>(size)), 0);
  EXPECT_EQ(fcntl(descriptor, F_ADD_SEALS, seals), 0);
  return descriptor;
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open)));
}

class UnixTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    before = open_descriptors();
    connect();
  }
  void TearDown() override {
    transport = nullptr;
    close_raw();
    EXPECT_EQ(open_descriptors(), before);
  }
  void connect() {
    transport = nullptr;
    close_raw();
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    transport = make_unix_transport(sockets[0]);
    raw = sockets[1];
  }
  void close_raw() {
    if (raw >= 0) ::close(std::exchange(raw, -1));
  }
  void write(const Bytes& bytes) {
    ASSERT_EQ(::send(raw, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // Sends the bytes along with descriptors, which it then closes.
  void write_with(const Bytes& bytes, std::vector<int> descriptors) {
    iovec piece = {const_cast<uint8_t*>(bytes.data()), bytes.size()};
    std::vector<char> ancillary(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size() * sizeof(int));
    ASSERT_EQ(sendmsg(raw, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    for (int descriptor : descriptors) ::close(descriptor);
  }
  Status receive() { return transport->receive(&frame, kLong); }
  void expect_refused(const char* why) {
    const Status status = receive();
    EXPECT_EQ(status.code(), ErrorCode::kInvalid);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    // The error is permanent, and the other end is informed.
    EXPECT_EQ(receive().code(), ErrorCode::kInvalid);
    EXPECT_EQ(transport->send({}, {}, nullptr).code(), ErrorCode::kLost);
    char bytes[4096];  // sent by the transport before the error
    while (recv(raw, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
    EXPECT_TRUE(recv(raw, bytes, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK));
    connect();
  }

  size_t before = 0;
  std::unique_ptr<Transport> transport;
  int raw = -1;
  Frame frame;
};

TEST_F(UnixTransportTest, FramesArriveWholeHoweverTheirBytesAreCut) {
  std::thread writer([this] {
    for (uint8_t n = 0; n < 20; ++n) {
      Bytes bytes = frame_of(Bytes(n, n));
      if (n % 3 == 0) {
        bytes = attached(0, 0, n, 1);
        bytes.insert(bytes.end(), n, n);
      }
      for (uint8_t byte : bytes) write({byte});
    }
  });
  for (uint8_t n = 0; n < 20; ++n) {
    ASSERT_TRUE(receive().ok());
    if (n % 3 == 0) {
      ASSERT_EQ(frame.attachment->bytes().size(), n);
      for (std::byte byte : frame.attachment->bytes()) EXPECT_EQ(byte, std::byte{n});
    } else {
      EXPECT_EQ(frame.control, Bytes(n, n));
    }
  }
  writer.join();
}

TEST_F(UnixTransportTest, GarbageIsRefused) {
  write(Bytes(100, 'x'));
  expect_refused("is another program at the other end?");
}

TEST_F(UnixTransportTest, AnotherProtocolVersionIsNamed) {
  Bytes bytes = frame_of({1, 2});
  bytes[4] = 9;
  write(bytes);
  expect_refused("speaks protocol version 9, this one 2");
}

TEST_F(UnixTransportTest, AnImpossibleLengthIsRefusedBeforeAnyMemoryIsTaken) {
  wire::Header header = header_of({}, wire::Type::kRun);
  header.length = wire::kMaxControl + 1;
  Bytes bytes;
  append(bytes, header);
  write(bytes);
  expect_refused("a control message has 268435457 bytes");
}

TEST_F(UnixTransportTest, DamagedBytesAreRefused) {
  Bytes bytes = frame_of({1, 2, 3});
  bytes.back() ^= 1;
  write(bytes);
  expect_refused("checksum");
}

TEST_F(UnixTransportTest, FramesBeforeTheDamageAreStillReceived) {
  Bytes bytes = frame_of({1});
  const Bytes damaged(40, 0);
  bytes.insert(bytes.end(), damaged.begin(), damaged.end());
  write(bytes);
  EXPECT_TRUE(receive().ok());
  expect_refused("is not a frame");
}

TEST_F(UnixTransportTest, DeathInTheMiddleOfAFrameIsALoss) {
  const Bytes whole = frame_of(Bytes(100, 1));
  for (size_t size : {size_t{1}, size_t{31}, size_t{32}, size_t{50}, whole.size() - 1}) {
    write(frame_of({7}));
    write({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    close_raw();
    EXPECT_TRUE(receive().ok());
    const Status status = receive();
    EXPECT_EQ(status.code(), ErrorCode::kLost);
    EXPECT_NE(status.message().find("in the middle of a frame"), std::string::npos) << status.message();
    connect();
  }
}

TEST_F(UnixTransportTest, AnHonestSegmentWorksAndMayHoldManyAttachments) {
  const int descriptor = memory_file(1 << 20, F_SEAL_SHRINK);
  auto* memory = static_cast<uint8_t*>(mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
  std::memset(memory, 5, 1 << 20);
  write_with(announce(3, 1 << 20), {descriptor});
  write(attached(3, 0, 1 << 20));
  write(attached(3, 100, 200));
  ASSERT_TRUE(receive().ok());
  EXPECT_EQ(frame.attachment->bytes().size(), 1u << 20);
  EXPECT_EQ(frame.attachment->bytes()[77], std::byte{5});
  AttachmentPtr first = frame.attachment;
  ASSERT_TRUE(receive().ok());
  EXPECT_EQ(frame.attachment->bytes().data(), first->bytes().data() + 100);
  // A segment that its owner retired stays mapped while an attachment in it is held.
  write(retire(3));
  write(frame_of({1}));
  frame = Frame();
  ASSERT_TRUE(receive().ok());
  EXPECT_EQ(first->bytes()[99], std::byte{5});
  munmap(memory, 1 << 20);
}

TEST_F(UnixTransportTest, BadSegmentsAreRefused) {
  write_with(announce(1, 8192), {memory_file(8192, F_SEAL_GROW)});
  expect_refused("not memory sealed against shrinking");
  write_with(announce(1, 8192), {memory_file(4096, F_SEAL_SHRINK)});
  expect_refused("a segment has 4096 bytes, but was announced with 8192");
  write_with(announce(1, 0), {memory_file(4096, F_SEAL_SHRINK)});
  expect_refused("announced with 0");
  write_with(announce(1, uint64_t{1} << 63), {memory_file(4096, F_SEAL_SHRINK)});
  expect_refused("announced with");
  write_with(announce(1, 4096), {open("/dev/zero", O_RDWR | O_CLOEXEC)});
  expect_refused("not memory sealed");
  write(announce(1, 4096));
  expect_refused("a segment has no descriptor");
  write_with(announce(1, 4096), {memory_file(4096, F_SEAL_SHRINK)});
  write_with(announce(1, 4096), {memory_file(4096, F_SEAL_SHRINK)});
  expect_refused("segment number 1 is in use");
  write_with(announce(uint64_t{1} << 40, 4096), {memory_file(4096, F_SEAL_SHRINK)});
  expect_refused("segment number");
}

TEST_F(UnixTransportTest, BadAttachmentsAreRefused) {
  for (auto [offset, size] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
           {0, 4097}, {4096, 1}, {1, UINT64_MAX}, {UINT64_MAX, 2}, {UINT64_MAX - 1, UINT64_MAX - 1}}) {
    write_with(announce(1, 4096), {memory_file(4096, F_SEAL_SHRINK)});
    write(attached(1, offset, size));
    expect_refused("of a segment of 4096");
  }
  write(attached(2, 0, 1));
  expect_refused("segment 2, which does not exist");
  write(attached(1, 0, 1, 2));  // flags 2: in one of our segments, of which there are none
  expect_refused("segment 1, which does not exist");
  write(attached(0, 0, uint64_t{1} << 50, 1));
  expect_refused("came through the socket");
}

TEST_F(UnixTransportTest, OfThisEndsMemoryOnlyWhatIsLentCanBeNamed) {
  constexpr uint32_t kOurs = 2;  // flag of an attachment in a segment of the receiver
  constexpr size_t kSize = 256 << 10;
  AttachmentPtr whole;
  const auto lend_half = [&] {
    whole = transport->allocate(kSize);
    std::memset(whole->bytes().data(), 7, kSize);
    ASSERT_TRUE(transport->send({}, {}, transport->share(whole->bytes().data() + kSize / 4, kSize / 2, whole)).ok());
  };
  lend_half();
  write(attached(1, kSize / 4, kSize / 2, kOurs));
  write(attached(1, kSize / 4 + 100, 10, kOurs));
  ASSERT_TRUE(receive().ok());
  EXPECT_EQ(frame.attachment->bytes().data(), whole->bytes().data() + kSize / 4);
  ASSERT_TRUE(receive().ok());
  EXPECT_EQ(frame.attachment->bytes().size(), 10u);
  for (auto [offset, size] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
           {0, 16}, {kSize / 4 - 1, 2}, {kSize / 4, kSize / 2 + 1}, {kSize - 16, 16}, {0, kSize}}) {
    write(attached(1, offset, size, kOurs));
    expect_refused("was not lent");
    lend_half();
  }
  // Once it was given back, the peer may not name it any more. Attachments named before stay valid.
  write(attached(1, kSize / 4, 100, kOurs));
  ASSERT_TRUE(receive().ok());
  const std::weak_ptr<Attachment> held = whole;
  whole = nullptr;
  write(give_back(1));
  write(frame_of({1}));
  AttachmentPtr named = frame.attachment;
  ASSERT_TRUE(receive().ok());
  EXPECT_FALSE(held.expired());
  EXPECT_EQ(named->bytes()[99], std::byte{7});
  write(attached(1, kSize / 4, 100, kOurs));
  named = nullptr;
  expect_refused("was not lent");
}

// Tries every way in which the receiver of `descriptor` could write to the memory.
bool can_write(int descriptor, size_t size) {
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  const int again = open(path.c_str(), O_RDWR | O_CLOEXEC);
  bool can = false;
  for (const int file : {descriptor, again}) {
    if (file < 0) continue;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    can |= memory != MAP_FAILED;
    if (memory != MAP_FAILED) munmap(memory, size);
    memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    EXPECT_NE(memory, MAP_FAILED);
    can |= mprotect(memory, size, PROT_READ | PROT_WRITE) == 0;
    munmap(memory, size);
    can |= pwrite(file, "x", 1, 0) == 1;
    can |= fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size)) == 0;
    can |= ftruncate(file, 0) == 0;
  }
  if (again >= 0) ::close(again);
  return can;
}

TEST_F(UnixTransportTest, WhatIsLentReadOnlyCannotBeWrittenByTheReceiver) {
  constexpr size_t kSize = 64 << 10;
  transport = nullptr;
  close_raw();
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  transport = make_unix_transport(sockets[0], MemoryAccess::kReadOnly);
  raw = sockets[1];
  AttachmentPtr lent = transport->allocate(kSize);
  std::memset(lent->bytes().data(), 1, kSize);
  ASSERT_TRUE(transport->send({}, {}, lent).ok());
  Bytes bytes(4096);
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
  iovec piece = {bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof(ancillary);
  ASSERT_GT(recvmsg(raw, &message, MSG_CMSG_CLOEXEC), 0);
  ASSERT_NE(CMSG_FIRSTHDR(&message), nullptr);
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  EXPECT_FALSE(can_write(descriptor, kSize));
  // The segment's owner can still write, and the other end sees it.
  auto* seen = static_cast<uint8_t*>(mmap(nullptr, kSize, PROT_READ, MAP_SHARED, descriptor, 0));
  ASSERT_NE(seen, MAP_FAILED);
  lent->bytes()[100] = std::byte{9};
  EXPECT_EQ(seen[100], 9);
  munmap(seen, kSize);
  ::close(descriptor);
}

TEST_F(UnixTransportTest, ASegmentThatIsSealedAgainstWritingIsMappedReadOnly) {
  write_with(announce(1, 4096), {memory_file(4096, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)});
  write(attached(1, 0, 4096));
  ASSERT_TRUE(receive().ok());
  EXPECT_EQ(frame.attachment->bytes()[4095], std::byte{0});
}

TEST_F(UnixTransportTest, BadMessagesOfTheTransportAreRefused) {
  write(give_back(1));
  expect_refused("was returned, but it was not lent");
  write(retire(1));
  expect_refused("retired, but it does not exist");
  write(segment_message(77, {}));
  expect_refused("unknown kind 77");
  write(frame_of({1, 2, 3}, wire::Type::kTransport));
  expect_refused("truncated");
  write(frame_of({2, 0, 0, 0, 255, 255, 255, 255}, wire::Type::kTransport));  // claims many tokens but has none
  expect_refused("wrong length");
  Bytes bytes;
  append(bytes, header_of({}, wire::Type::kTransport, wire::kAttachment));
  write(bytes);
  expect_refused("has an attachment");
}

TEST_F(UnixTransportTest, DescriptorsThatNobodyAnnouncedDoNotPileUp) {
  for (int i = 0; i < 3; ++i) {
    std::vector<int> descriptors(8);
    for (int& descriptor : descriptors) descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    write_with(frame_of({1}), descriptors);
  }
  Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) status = receive();
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
}

// The peer keeps sending and reads nothing, so this end waits in send and receives meanwhile.
TEST_F(UnixTransportTest, APeerThatDoesNotReadFillsNoQueueWithoutEnd) {
  const Bytes large(16 << 20, 1);  // more than the socket buffers
  std::thread sender([&] { EXPECT_TRUE(transport->send({}, large, nullptr).ok()); });
  const Bytes sent = frame_of(Bytes(1 << 20, 2));
  size_t frames = 0, place = 0;
  for (pollfd writable{raw, POLLOUT, 0}; frames * sent.size() < 2 * kMaxQueued;) {
    if (poll(&writable, 1, 2000) == 0) break;
    const ssize_t n = ::send(raw, sent.data() + place, sent.size() - place, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0 && (place += static_cast<size_t>(n)) == sent.size()) ++frames, place = 0;
  }
  EXPECT_GE(frames * sent.size(), kMaxQueued);
  EXPECT_LT(frames * sent.size(), kMaxQueued + (kMaxQueued >> 2));  // includes the frames that the socket buffers
  // When the peer reads again, everything continues.
  for (size_t taken = 0; taken < sizeof(wire::Header) + large.size();) {
    Bytes bytes(1 << 20);
    const ssize_t n = recv(raw, bytes.data(), bytes.size(), 0);
    ASSERT_GT(n, 0);
    taken += static_cast<size_t>(n);
  }
  sender.join();
  std::thread rest([&] { write(Bytes(sent.begin() + static_cast<ptrdiff_t>(place), sent.end())); });
  for (size_t i = 0; i < frames + 1; ++i) {
    ASSERT_TRUE(receive().ok());
    EXPECT_EQ(frame.control.size(), size_t{1} << 20);
  }
  rest.join();
}

TEST_F(UnixTransportTest, RandomDamageNeverDoesHarm) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 300; ++round) {
    write_with(announce(1, 4096), {memory_file(4096, F_SEAL_SHRINK)});
    Bytes stream;
    for (const Bytes& part :
         {frame_of(Bytes(20, 3)), attached(1, 8, 100), give_back(1), retire(1), attached(0, 0, 4, 1)}) {
      stream.insert(stream.end(), part.begin(), part.end());
    }
    for (uint64_t i = random() % 4; i-- > 0;) stream[random() % stream.size()] = static_cast<uint8_t>(random());
    stream.resize(stream.size() - random() % 50);
    write(stream);
    close_raw();
    Status status;
    do {
      status = receive();
      if (status.ok() && frame.attachment) {
        for (std::byte& byte : frame.attachment->bytes()) byte = std::byte{1};  // all of it must be accessible
      }
    } while (status.ok());
    EXPECT_NE(status.code(), ErrorCode::kTimeout);
    frame = Frame();
    connect();
  }
}

TEST_F(UnixTransportTest, LargeAttachmentsDoNotGoThroughTheSocket) {
  const AttachmentPtr large = transport->allocate(64 << 20);
  ASSERT_TRUE(transport->send({}, Bytes(100, 1), large).ok());
  Bytes bytes(4096);
  EXPECT_LT(recv(raw, bytes.data(), bytes.size(), 0), 400);
  EXPECT_LE(recv(raw, bytes.data(), bytes.size(), MSG_DONTWAIT), 0);
}

TEST_F(UnixTransportTest, ADescriptorIsHeldOnlyUntilItsSegmentWasSent) {
  const size_t idle = open_descriptors();
  AttachmentPtr attachment = transport->allocate(1 << 20);
  EXPECT_EQ(open_descriptors(), idle + 1);
  ASSERT_TRUE(transport->send({}, {}, attachment).ok());
  EXPECT_EQ(open_descriptors(), idle);
}

TEST_F(UnixTransportTest, MemoryThatIsNotUsedAgainIsGivenToTheSystem) {
  // The pool caches at most 512 MiB. The pages of these attachments are never touched.
  for (int i = 0; i < 8; ++i) {
    std::vector<AttachmentPtr> several;
    for (int j = 0; j < 4; ++j)
      several.push_back(transport->allocate((size_t{100} + static_cast<size_t>(i) * 60) << 20));
  }
  EXPECT_LT(open_descriptors(), before + 15);  // each segment that was never sent holds one
}

TEST_F(UnixTransportTest, AnAbandonedEndIsClosed) {
  transport->abandon();
  abandoned = transport.release();  // as in a forked child, where nothing is destroyed
  char byte;
  EXPECT_EQ(recv(raw, &byte, 1, 0), 0);
}

std::chrono::nanoseconds processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Even if the other end used to answer soon, a wait without a message costs no more than a short spin.
TEST_F(UnixTransportTest, AnEndThatHasNothingToDoSleeps) {
  for (const auto gap : {20us, 1000us}) {
    std::thread other([&] {
      for (int i = 0; i < 100; ++i) {
        std::this_thread::sleep_for(gap);
        write(frame_of({1, 2, 3}));
      }
    });
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(receive().ok());
    other.join();
    const auto before = processor_time();
    EXPECT_EQ(transport->receive(&frame, 300ms).code(), ErrorCode::kTimeout);
    EXPECT_LT(processor_time() - before, 10ms);
  }
}

// Frames that come in a rhythm are received in order and exactly once.
TEST_F(UnixTransportTest, FramesInARhythmComeInOrder) {
  std::thread other([&] {
    for (uint8_t i = 0; i < 120; ++i) {
      std::this_thread::sleep_for(i < 60 ? 700us : 50us);
      write(frame_of({i}));
    }
  });
  for (uint8_t i = 0; i < 120; ++i) {
    ASSERT_TRUE(receive().ok());
    EXPECT_EQ(frame.control, Bytes{i});
  }
  other.join();
  EXPECT_EQ(transport->receive(&frame, 1ms).code(), ErrorCode::kTimeout);
}

}  // namespace
}  // namespace torch_remote::remote
