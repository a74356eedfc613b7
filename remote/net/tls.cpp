#include "remote/net/tls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <malloc.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace torch_remote::remote {
namespace {

constexpr size_t kRecord = 16 << 10;        // most bytes of a TLS record
constexpr size_t kSmallRecord = 1 << 10;    // most bytes of a record that we send before the handshake is done
constexpr size_t kMostRead = 16 * kRecord;  // most bytes that one call of read returns
constexpr size_t kBatch = 8 * kRecord;      // about as many bytes go to or come from the kernel at once
constexpr size_t kRecordExtra = 256;        // most bytes that encryption adds to a record
constexpr size_t kMostKeyFile = 64 << 10;
constexpr long kMaxCertificates = 16 << 10;  // most bytes of certificates that the other end may send
// The identity of the pre-shared key, which reveals nothing about the key.
constexpr std::string_view kIdentity = "torch-remote";

// The text of OpenSSL's last error. All its errors are then cleared. If a system call failed first, the text is that of
// its errno, for which the later errors stand.
std::string openssl_error() {
  if (const unsigned long first = ERR_peek_error(); ERR_SYSTEM_ERROR(first)) {
    ERR_clear_error();
    return std::strerror(ERR_GET_REASON(first));
  }
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason : code != 0 ? "error " + std::to_string(code) : "the connection ended";
  ERR_clear_error();
  return text;
}

void* allocate(size_t size, const char*, int) { return std::malloc(size); }
void overwrite_and_free(void* memory, const char*, int) {
  if (memory == nullptr) return;
  OPENSSL_cleanse(memory, malloc_usable_size(memory));
  std::free(memory);
}
void* reallocate(void* memory, size_t size, const char* file, int line) {
  if (size == 0) return overwrite_and_free(memory, file, line), nullptr;
  void* const made = std::malloc(size);
  if (made == nullptr || memory == nullptr) return made;
  std::memcpy(made, memory, std::min(size, malloc_usable_size(memory)));
  overwrite_and_free(memory, file, line);
  return made;
}

// --- a socket for OpenSSL --------------------------------------------------------------------------------------------

// OpenSSL allocates the length that a client hello states, up to 128 KiB, before it has read the hello. So a worker
// checks the plaintext first. Every handshake message that is not encrypted must be a client hello shorter than 4 KiB;
// those of real clients are. A hello may continue in the next record.
class HelloGuard {
 public:
  bool good(const char* data, size_t size) {
    for (const char* p = data; p < data + size; ++p) {
      const auto byte = static_cast<uint8_t>(*p);
      if (record_left_ == 0) {
        header_[header_size_++] = byte;
        if (header_size_ < header_.size()) continue;
        header_size_ = 0;
        record_left_ = static_cast<size_t>(header_[3] << 8 | header_[4]);
        continue;
      }
      --record_left_;
      constexpr uint8_t kHandshake = 22;
      if (header_[0] == kHandshake && !good_message(byte)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kMostHello = 4096;

  bool good_message(uint8_t byte) {
    if (message_left_ > 0) return --message_left_, true;
    message_[message_size_++] = byte;
    if (message_size_ < message_.size()) return true;
    message_size_ = 0;
    message_left_ = static_cast<size_t>(message_[2] << 8 | message_[3]);
    constexpr uint8_t kClientHello = 1;
    return message_[0] == kClientHello && message_[1] == 0 && message_left_ < kMostHello;
  }

  std::array<uint8_t, 5> header_{};   // of the current record
  std::array<uint8_t, 4> message_{};  // type and length of the current message
  size_t header_size_ = 0, record_left_ = 0;
  size_t message_size_ = 0, message_left_ = 0;
};

// The socket of a connection. After the handshake several records go to or come from the kernel at once, because a
// system call costs as much as the encryption of a record.
struct Socket {
  int descriptor = -1;
  bool guards = false;
  HelloGuard guard;
  // Bytes [begin, end) are to be sent, or were received and not read. Without memory nothing is batched.
  struct Batch {
    std::unique_ptr<char[]> data;
    size_t capacity = 0, begin = 0, end = 0;

    void allocate(size_t size) {
      data = std::make_unique_for_overwrite<char[]>(size);
      capacity = size;
    }
    bool empty() const { return begin == end; }
  };
  Batch in, out;
};

// OpenSSL's own socket BIO would raise SIGPIPE.
ssize_t send_now(int socket, const char* data, size_t size) {
  return TEMP_FAILURE_RETRY(send(socket, data, size, MSG_NOSIGNAL | MSG_DONTWAIT));
}

ssize_t receive_now(int socket, char* data, size_t size) {
  return TEMP_FAILURE_RETRY(recv(socket, data, size, MSG_DONTWAIT));
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

int write_socket(BIO* bio, const char* data, int size) {
  auto& to = *static_cast<Socket*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto bytes = static_cast<size_t>(size);
  if (to.out.capacity > 0) {
    if (to.out.capacity - to.out.end < bytes) {
      BIO_set_retry_write(bio);
      return -1;
    }
    std::memcpy(&to.out.data[to.out.end], data, bytes);
    to.out.end += bytes;
    return size;
  }
  const ssize_t n = send_now(to.descriptor, data, bytes);
  if (n < 0 && would_block()) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int read_socket(BIO* bio, char* data, int size) {
  auto& from = *static_cast<Socket*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto wanted = static_cast<size_t>(size);
  const bool batches = from.in.capacity > 0;
  if (from.in.empty()) {
    const ssize_t n = batches ? receive_now(from.descriptor, from.in.data.get(), from.in.capacity)
                              : receive_now(from.descriptor, data, wanted);
    if (n < 0 && would_block()) BIO_set_retry_read(bio);
    if (n > 0 && from.guards && !from.guard.good(data, static_cast<size_t>(n))) {
      errno = EPROTO;
      return -1;
    }
    if (n <= 0 || !batches) return static_cast<int>(n);
    from.in.begin = 0;
    from.in.end = static_cast<size_t>(n);
  }
  const size_t n = std::min(wanted, from.in.end - from.in.begin);
  std::memcpy(data, &from.in.data[from.in.begin], n);
  from.in.begin += n;
  return static_cast<int>(n);
}

long control_socket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* make_bio(Socket* socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(made, write_socket);
    BIO_meth_set_read(made, read_socket);
    BIO_meth_set_ctrl(made, control_socket);
    return made;
  }();
  BIO* bio = BIO_new(method);
  BIO_set_data(bio, socket);
  BIO_set_init(bio, 1);
  return bio;
}

// --- contexts --------------------------------------------------------------------------------------------------------

// Loads a private key without leaving copies of the file in memory, as stdio's buffers would.
bool load_key(SSL_CTX* context, const std::string& file) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    ERR_raise_data(ERR_LIB_SYS, errno, "open");
    return false;
  }
  std::vector<char> text(kMostKeyFile);
  size_t size = 0;
  for (ssize_t n; size < text.size() && (n = read(descriptor, text.data() + size, text.size() - size)) > 0;) {
    size += static_cast<size_t>(n);
  }
  close(descriptor);
  BIO* bio = BIO_new_mem_buf(text.data(), static_cast<int>(size));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, [](char*, int, int, void*) { return -1; }, nullptr);
  BIO_free(bio);
  OPENSSL_cleanse(text.data(), text.size());
  const bool good = key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1;
  EVP_PKEY_free(key);
  return good;
}

Status load_certificate(SSL_CTX* context, const TlsFiles& files, const char* how) {
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return Status::invalid("remote: cannot read the certificate '" + files.certificate + "' (" + openssl_error() +
                           "); give a PEM file" + how);
  }
  if (!load_key(context, files.key) || SSL_CTX_check_private_key(context) != 1) {
    return Status::invalid("remote: cannot use the key '" + files.key + "' (" + openssl_error() +
                           "); give the PEM file of the key of that certificate, without a pass phrase" + how);
  }
  return {};
}

Status load_authorities(SSL_CTX* context, const std::string& file, const char* how) {
  if (SSL_CTX_load_verify_locations(context, file.c_str(), nullptr) == 1) return {};
  return Status::invalid("remote: cannot read the authority's certificate '" + file + "' (" + openssl_error() +
                         "); give a PEM file" + how);
}

Status new_context(const SSL_METHOD* method, SSL_CTX** context) {
  ERR_clear_error();
  // OpenSSL must not clean up at exit, because threads may still use it.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  *context = SSL_CTX_new(method);
  if (*context == nullptr) return Status::internal("remote: OpenSSL cannot be used: " + openssl_error());
  SSL_CTX_set_min_proto_version(*context, TLS1_3_VERSION);
  // Buffers are released when they are empty, so that the stream can ask for larger ones after the handshake.
  SSL_CTX_set_mode(*context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(*context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_max_cert_list(*context, kMaxCertificates);
  // The fastest one comes first, for processors with AES instructions.
  SSL_CTX_set_ciphersuites(*context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_max_send_fragment(*context, kSmallRecord);
  SSL_CTX_set_num_tickets(*context, 0);  // we resume our own sessions, not those of TLS
  return {};
}

// --- pre-shared keys -------------------------------------------------------------------------------------------------

// The form in which OpenSSL takes a pre-shared key.
SSL_SESSION* session_of(SSL* ssl) {
  static constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
  const auto* key = static_cast<const Digest*>(SSL_get_app_data(ssl));
  SSL_SESSION* made = key != nullptr ? SSL_SESSION_new() : nullptr;
  if (made == nullptr) return nullptr;
  if (SSL_SESSION_set1_master_key(made, key->data(), key->size()) == 1 &&
      SSL_SESSION_set_cipher(made, SSL_CIPHER_find(ssl, kCipher)) == 1 &&
      SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1) {
    return made;
  }
  SSL_SESSION_free(made);
  return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* size, SSL_SESSION** session) {
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *size = kIdentity.size();
  *session = session_of(ssl);
  return *session != nullptr;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), size) == kIdentity) *session = session_of(ssl);
  return 1;
}

// --- errors ----------------------------------------------------------------------------------------------------------

std::string date_of(const ASN1_TIME* time) {
  BIO* text = BIO_new(BIO_s_mem());
  ASN1_TIME_print(text, time);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text, &data);
  std::string date(data, static_cast<size_t>(size));
  BIO_free(text);
  return date;
}

// Why a client does not trust the worker.
std::string not_trusted(SSL* ssl, long why, const std::string& host) {
  X509* certificate = SSL_get0_peer_certificate(ssl);
  switch (why) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired" +
             (certificate ? " (" + date_of(X509_get0_notAfter(certificate)) + ")" : std::string()) +
             "; give the worker a new one (--tls-cert)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet; check the clocks of both machines, or give the worker another one "
             "(--tls-cert)";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "its certificate is not for '" + host +
             "'; connect by a name that is in it, or make one with that name (subjectAltName)";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "its certificate is from an authority that is not trusted here; set TORCH_REMOTE_TLS_CA to the file with "
             "that authority's certificate";
    default:
      return std::string("its certificate is not valid: ") + X509_verify_cert_error_string(why) +
             "; give the worker another one (--tls-cert), or trust its authority (TORCH_REMOTE_TLS_CA)";
  }
}

// The text for an alert of the other end. If a worker requires a certificate, the alert comes after the client's
// handshake.
std::string alert_text(int reason) {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "the worker requires a certificate from its clients; set TORCH_REMOTE_TLS_CERT and TORCH_REMOTE_TLS_KEY";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return "the other end does not trust the certificate of this one; get one from an authority that it trusts";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "the other end says that the certificate of this one has expired; make a new one";
    default:
      return {};
  }
}

// --- the stream ------------------------------------------------------------------------------------------------------

// Holds the bytes that a call of write has not sent yet.
class Unsent {
 public:
  explicit Unsent(std::span<const iovec> pieces) : pieces_(pieces) { skip(0); }

  bool empty() const { return pieces_.empty(); }
  void skip(size_t bytes) {
    at_ += bytes;
    while (!pieces_.empty() && at_ >= pieces_.front().iov_len) {
      at_ -= pieces_.front().iov_len;
      pieces_ = pieces_.subspan(1);
    }
  }
  // The next bytes, at most `most`. Small pieces are copied to `gathered`, so that they become one record.
  std::span<const char> front(size_t most, std::vector<char>* gathered) const {
    const auto of = [&](size_t i) {
      const std::span<const char> piece(static_cast<const char*>(pieces_[i].iov_base), pieces_[i].iov_len);
      return i == 0 ? piece.subspan(at_) : piece;
    };
    if (of(0).size() >= most || pieces_.size() == 1) return of(0).first(std::min(of(0).size(), most));
    gathered->clear();
    for (size_t i = 0; i < pieces_.size() && gathered->size() < most; ++i) {
      const std::span<const char> piece = of(i);
      const std::span<const char> taken = piece.first(std::min(piece.size(), most - gathered->size()));
      gathered->insert(gathered->end(), taken.begin(), taken.end());
    }
    return *gathered;
  }

 private:
  std::span<const iovec> pieces_;
  size_t at_ = 0;  // of the first piece
};

// OpenSSL's object is not thread safe, so a lock guards each call, which handles at most a batch.
class Stream : public TlsStream {
 public:
  Stream(int socket, const TlsContext& context, std::string description)
      : socket_(socket), description_(std::move(description)), ssl_(SSL_new(context.get())) {
    wire_.descriptor = socket_;
    wire_.guards = context.side() == TlsContext::Side::kWorker;
    BIO* bio = make_bio(&wire_);
    SSL_set_bio(ssl_, bio, bio);
  }
  ~Stream() override {
    // Sends a close_notify alert, if possible.
    if (shaken_ && flush().ok()) {
      SSL_shutdown(ssl_);
      (void)flush();
    }
    ERR_clear_error();
    SSL_free(ssl_);
    shutdown(socket_, SHUT_WR);
    // As in make_socket_stream: we read first, so that the kernel delivers what was sent.
    char bytes[4096];
    for (int i = 0; i < 256 && recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT) > 0; ++i) {
    }
    ::close(socket_);
  }

  Status shake_hands(const TlsContext& context, const TlsPeer& peer, const Deadline& deadline);

  Status export_secret(std::string_view label, std::span<const uint8_t> context, Digest* secret) override {
    std::lock_guard lock(mutex_);
    if (SSL_export_keying_material(ssl_, secret->data(), secret->size(), label.data(), label.size(), context.data(),
                                   context.size(), 1) == 1) {
      return {};
    }
    return Status::internal("remote: OpenSSL exports no secret of the TLS connection: " + openssl_error());
  }
  void use_large_buffers() override {
    std::lock_guard lock(mutex_);
    SSL_clear_mode(ssl_, SSL_MODE_RELEASE_BUFFERS);
    SSL_set_max_send_fragment(ssl_, kRecord);
    SSL_set_split_send_fragment(ssl_, kRecord);  // without this call the smaller limit would still apply to sends
    wire_.in.allocate(kBatch);
    wire_.out.allocate(kBatch + kRecordExtra * kBatch / kRecord);
  }

  Status read(std::span<const iovec> to, size_t* bytes, std::deque<int>*) override {
    size_t all = 0;
    for (const iovec& piece : to) {
      for (size_t at = 0; at < piece.iov_len;) {
        size_t n = 0;
        Status status = read_record(static_cast<char*>(piece.iov_base) + at, piece.iov_len - at, &n);
        if (!status && all > 0) return *bytes = all, Status();
        if (!status) return status;
        if (n == 0) return *bytes = all, Status();  // the end of the stream; the next call will find it again
        all += n;
        at += n;
        if (all >= kMostRead) return *bytes = all, Status();
      }
    }
    *bytes = all;
    return {};
  }

  // A batch that the kernel does not take whole stays here, and the caller must come back for it. So the bytes of its
  // last record do not count as sent yet; the next call begins with them, and skips them.
  Status write(std::span<const iovec> from, size_t* bytes, int*) override {
    std::lock_guard lock(mutex_);
    if (Status status = flush(); !status) return status;
    Unsent unsent(from);
    size_t sent = std::exchange(encrypted_, 0), last = 0;
    unsent.skip(sent);
    ERR_clear_error();
    while (!unsent.empty()) {
      const std::span<const char> data = unsent.front(kRecord, &gathered_);
      const int n = SSL_write(ssl_, data.data(), static_cast<int>(data.size()));
      if (n <= 0) {
        if (sent > 0) break;
        return why(n);
      }
      last = static_cast<size_t>(n);
      sent += last;
      unsent.skip(last);
      if (wire_.out.end + kRecord + kRecordExtra > wire_.out.capacity) break;
    }
    Status status = flush();
    if (status.code() == ErrorCode::kTimeout) {
      encrypted_ = last;
      sent -= last;
    }
    if (!status && sent == 0) return status;
    return *bytes = sent, Status();
  }

  bool is_peer(int process) const override { return is_tcp_peer(socket_, process); }
  int input() const override { return socket_; }
  int output() const override { return socket_; }
  void shut_down() override { shutdown(socket_, SHUT_RDWR); }
  void abandon() override { ::close(socket_); }
  std::string description() const override { return description_; }

 private:
  Status read_record(char* to, size_t size, size_t* bytes) {
    std::lock_guard lock(mutex_);
    ERR_clear_error();
    const int n = SSL_read(ssl_, to, static_cast<int>(std::min<size_t>(size, INT32_MAX)));
    if (n > 0) return *bytes = static_cast<size_t>(n), Status();
    if (SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN) return *bytes = 0, Status();
    Status status = why(n);
    (void)flush();  // OpenSSL may have written an alert
    return status;
  }

  // Requires mutex_. Turns the result of a failed call into an error.
  Status why(int result) {
    const int saved = errno;
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return {ErrorCode::kTimeout, "remote: timeout"};
      case SSL_ERROR_SYSCALL:
        return {ErrorCode::kLost, saved != 0 ? std::strerror(saved) : "it was closed"};
      default:
        break;
    }
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
      ERR_clear_error();
      return {ErrorCode::kLost, "it was closed"};
    }
    const std::string alert = alert_text(reason);
    return {ErrorCode::kLost, alert.empty() ? "TLS: " + openssl_error() : alert};
  }

  // Requires mutex_. Sends the batch; kTimeout if the kernel does not take all of it.
  Status flush() {
    Socket::Batch& out = wire_.out;
    while (!out.empty()) {
      const ssize_t n = send_now(socket_, &out.data[out.begin], out.end - out.begin);
      if (n < 0 && would_block()) return {ErrorCode::kTimeout, "remote: timeout"};
      if (n < 0) return {ErrorCode::kLost, std::strerror(errno)};
      out.begin += static_cast<size_t>(n);
    }
    out.begin = out.end = 0;
    return {};
  }

  const int socket_;
  const std::string description_;
  std::mutex mutex_;
  Socket wire_;
  SSL* const ssl_;
  bool shaken_ = false;
  size_t encrypted_ = 0;        // bytes that the last write encrypted and did not count as sent
  std::vector<char> gathered_;  // scratch of write
};

Status Stream::shake_hands(const TlsContext& context, const TlsPeer& peer, const Deadline& deadline) {
  const bool client = context.side() == TlsContext::Side::kClient;
  if (SSL_CTX* own = context.credentials()) {
    STACK_OF(X509)* chain = nullptr;
    // NOLINTNEXTLINE(bugprone-multi-level-implicit-pointer-conversion): OpenSSL's macro
    SSL_CTX_get0_chain_certs(own, &chain);
    if (SSL_use_cert_and_key(ssl_, SSL_CTX_get0_certificate(own), SSL_CTX_get0_privatekey(own), chain, 1) != 1) {
      return Status::internal("remote: the certificate cannot be used: " + openssl_error());
    }
  }
  SSL_set_app_data(ssl_, const_cast<Digest*>(peer.key));  // only during the handshake
  if (client && peer.key == nullptr) {
    const std::string& host = peer.host;
    in6_addr number;
    X509_VERIFY_PARAM* checks = SSL_get0_param(ssl_);
    if (inet_pton(AF_INET, host.c_str(), &number) == 1 || inet_pton(AF_INET6, host.c_str(), &number) == 1) {
      X509_VERIFY_PARAM_set1_ip_asc(checks, host.c_str());
    } else {
      X509_VERIFY_PARAM_set1_host(checks, host.c_str(), 0);
      X509_VERIFY_PARAM_set_hostflags(checks, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
      SSL_set_tlsext_host_name(ssl_, host.c_str());
    }
  }
  if (client) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
  for (;;) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_);
    if (result == 1) break;
    const int error = SSL_get_error(ssl_, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      const long trust = SSL_get_verify_result(ssl_);
      if (client && peer.key == nullptr && trust != X509_V_OK) {
        ERR_clear_error();
        return {ErrorCode::kUnsupported,
                "remote: the worker at " + description_ + " is not trusted: " + not_trusted(ssl_, trust, peer.host)};
      }
      const bool cut =
          error == SSL_ERROR_SYSCALL || ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
      const Status status = why(result);
      return {cut ? ErrorCode::kLost : ErrorCode::kUnsupported,
              "remote: no TLS 1.3 with " + description_ + ": " + status.message()};
    }
    Status status = deadline.wait(socket_, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT);
    if (status.code() == ErrorCode::kTimeout) {
      return {ErrorCode::kTimeout,
              "remote: " + description_ +
                  " did not complete the TLS handshake in time; is the network slow, or is another program there?"};
    }
    if (!status.ok()) return status;
  }
  wire_.guards = false;
  SSL_set_app_data(ssl_, nullptr);
  SSL_certs_clear(ssl_);
  // A peer that does not know the key can still propose a handshake without it.
  if (peer.key != nullptr && SSL_session_reused(ssl_) != 1) {
    return {ErrorCode::kUnsupported, "remote: " + description_ + " does not know the key"};
  }
  shaken_ = true;
  return {};
}

}  // namespace

bool enable_openssl_cleansing() { return CRYPTO_set_mem_functions(allocate, reallocate, overwrite_and_free) == 1; }

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
  SSL_CTX_free(credentials_);
}

Status TlsContext::for_keys(Side side, std::shared_ptr<const TlsContext>* context) {
  const bool client = side == Side::kClient;
  SSL_CTX* made = nullptr;
  if (Status status = new_context(client ? TLS_client_method() : TLS_server_method(), &made); !status) return status;
  context->reset(new TlsContext(side, made));
  // No certificate is trusted.
  if (client) SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_psk_use_session_callback(made, offer_key);
  SSL_CTX_set_psk_find_session_callback(made, find_key);
  return {};
}

Status TlsContext::for_client(const TlsFiles& files, std::shared_ptr<const TlsContext>* context) {
  SSL_CTX* made = nullptr;
  if (Status status = new_context(TLS_client_method(), &made); !status) return status;
  const std::shared_ptr<TlsContext> its(new TlsContext(Side::kClient, made));
  *context = its;
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
  if (files.certificate.empty() != files.key.empty()) {
    return Status::invalid(
        "remote: a client's certificate needs its key, and the reverse; set both "
        "TORCH_REMOTE_TLS_CERT and TORCH_REMOTE_TLS_KEY");
  }
  if (!files.certificate.empty()) {
    constexpr const char* kHow = " (TORCH_REMOTE_TLS_CERT, TORCH_REMOTE_TLS_KEY)";
    if (Status status = new_context(TLS_client_method(), &its->credentials_); !status) return status;
    if (Status status = load_certificate(its->credentials_, files, kHow); !status) return status;
  }
  if (!files.authorities.empty()) return load_authorities(made, files.authorities, " (TORCH_REMOTE_TLS_CA)");
  SSL_CTX_set_default_verify_paths(made);
  return {};
}

Status TlsContext::for_worker(const TlsFiles& files, std::shared_ptr<const TlsContext>* context) {
  if (files.certificate.empty() || files.key.empty()) {
    return Status::invalid("remote: tls:// needs a certificate and its key: --tls-cert FILE --tls-key FILE");
  }
  SSL_CTX* made = nullptr;
  if (Status status = new_context(TLS_server_method(), &made); !status) return status;
  const std::shared_ptr<TlsContext> its(new TlsContext(Side::kWorker, made));
  *context = its;
  if (Status status = new_context(TLS_server_method(), &its->credentials_); !status) return status;
  if (Status status = load_certificate(its->credentials_, files, " (--tls-cert, --tls-key)"); !status) return status;
  if (files.authorities.empty()) return {};
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(files.authorities.c_str())) {
    SSL_CTX_set_client_CA_list(made, names);
  }
  return load_authorities(made, files.authorities, " (--tls-client-ca)");
}

Status start_tls(int socket, const TlsContext& context, const TlsPeer& peer, const Deadline& deadline,
                 std::string description, std::unique_ptr<TlsStream>* stream) {
  auto made = std::make_unique<Stream>(socket, context, std::move(description));
  if (Status status = made->shake_hands(context, peer, deadline); !status) return status;
  *stream = std::move(made);
  return {};
}

}  // namespace torch_remote::remote
