#include <cstdio>
#include <string>

#include "codegen/cpu/compile.h"
#include "codegen/library/codegen_api.h"
#include "codegen/loop/loop_ir.h"

namespace {

using namespace torch_remote;

int compile_cpu(const char* text, size_t size, const char* target, tr_code* code) {
  codegen::Kernel kernel;
  codegen::cpu::Code made;
  Status status = codegen::parse_kernel({text, size}, &kernel);
  if (status.ok()) status = codegen::verify(kernel);
  if (status.ok()) {
    codegen::cpu::CompileOptions options;
    options.target = target;
    status = codegen::cpu::compile(kernel, options, &made);
  }
  if (!status.ok()) {
    std::snprintf(code->message, sizeof(code->message), "%s", status.message().c_str());
    return 1;
  }
  code->take(code->context, made.bytes.data(), made.bytes.size());
  code->rows = made.rows;
  code->finish = made.finish;
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tr_codegen_api* torch_remote_codegen_api() {
  static const std::string version(torch_remote::codegen::cpu::compiler_version());
  static const tr_codegen_api api = {sizeof(tr_codegen_api), TR_CODEGEN_ABI, version.c_str(), compile_cpu};
  return &api;
}
