#include "worker/targets/aten/errors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace torch_remote::worker::aten {

void set_error(tr_error* error, const char* exception_type, const char* message) noexcept {
  const auto copy = [](char* to, size_t room, const char* from) {
    const size_t size = std::min(std::strlen(from), room - 1);
    std::memcpy(to, from, size);
    to[size] = 0;
  };
  copy(error->exception_type, sizeof(error->exception_type), exception_type);
  copy(error->message, sizeof(error->message), message);
}

void describe_exception(tr_error* error) noexcept {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    set_error(error, "OutOfMemoryError", e.what_without_backtrace());
  } catch (const c10::IndexError& e) {
    set_error(error, "IndexError", e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    set_error(error, "ValueError", e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    set_error(error, "TypeError", e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    set_error(error, "NotImplementedError", e.what_without_backtrace());
  } catch (const c10::BufferError& e) {
    set_error(error, "BufferError", e.what_without_backtrace());
  } catch (const c10::SyntaxError& e) {
    set_error(error, "SyntaxError", e.what_without_backtrace());
  } catch (const c10::LinAlgError& e) {
    set_error(error, "LinAlgError", e.what_without_backtrace());
  } catch (const c10::Error& e) {
    set_error(error, "RuntimeError", e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    set_error(error, "OutOfMemoryError", "remote: the worker is out of memory.");
  } catch (const std::exception& e) {
    set_error(error, "RuntimeError", e.what());
  } catch (...) {
    set_error(error, "RuntimeError", "remote: an op raised something other than an exception");
  }
}

}  // namespace torch_remote::worker::aten
