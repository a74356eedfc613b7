#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace torch_remote {

// Errors. The components without torch return them as a Status. Exceptions are used only where torch or Python expects
// them.
enum class ErrorCode {
  kOk,
  kInvalid,      // the input is wrong: damaged or hostile bytes, a text that does not parse, or an impossible option
  kUnsupported,  // this side lacks a version or feature, or the system refuses what was asked of it
  kOutOfMemory,  // torch.OutOfMemoryError
  kLost,         // the worker or the connection is gone: torch.remote.WorkerLost
  kTimeout,      // what was waited for did not happen in time
  kOpFailed,     // an op raised on the worker; the exception's class is in `exception_type`
  kInterrupted,  // the waiting code gave up (KeepWaiting): Ctrl-C, or the device is restarted
  kInternal,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message, std::string exception_type = {})
      : code_(code), message_(std::move(message)), exception_type_(std::move(exception_type)) {}

  static Status invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }
  static Status internal(std::string message) { return {ErrorCode::kInternal, std::move(message)}; }

  bool ok() const { return code_ == ErrorCode::kOk; }
  explicit operator bool() const { return ok(); }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // For kOpFailed: the Python exception class that PyTorch would raise ("RuntimeError", "IndexError", ...).
  const std::string& exception_type() const { return exception_type_; }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
  std::string exception_type_;
};

// The error of a system call that set errno: "remote: <what>: <errno's text>".
inline Status system_error(const std::string& what, ErrorCode code = ErrorCode::kUnsupported) {
  return {code, "remote: " + what + ": " + std::strerror(errno)};
}

}  // namespace torch_remote
