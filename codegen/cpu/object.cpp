#include "codegen/cpu/object.h"

#include <map>
#include <optional>
#include <string>

#include "codegen/cpu/emit.h"
#include "llvm/BinaryFormat/ELF.h"
#include "llvm/Object/ELFObjectFile.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/MathExtras.h"

namespace torch_remote::codegen::cpu {
namespace {

using llvm::object::ELF64LE;
using File = llvm::object::ELFFile<ELF64LE>;
namespace elf = llvm::ELF;

// Sections begin at the alignment of their widest constants, at most that of the blob. The blob needs no padding at its
// end, because nothing reads past it.
constexpr uint64_t kMaxAlignment = 64;

class Linker {
 public:
  Linker(File file, Code* code) : file_(std::move(file)), code_(code) {}

  Status run() {
    auto sections = file_.sections();
    if (!sections) return failed(sections.takeError());
    sections_ = *sections;
    code_->bytes.clear();
    // Code comes first, so that the functions begin near the start of the blob.
    for (const bool executable : {true, false}) {
      for (size_t i = 0; i < sections_.size(); ++i) {
        if (Status status = place(i, executable); !status) return status;
      }
    }
    for (const auto& section : sections_) {
      if (section.sh_type == elf::SHT_REL)
        return Status::internal("codegen: the object has relocations of a wrong kind");
      if (section.sh_type != elf::SHT_RELA || !places_.contains(section.sh_info)) continue;
      if (Status status = relocate(section); !status) return status;
    }
    return find_functions();
  }

 private:
  static Status failed(llvm::Error error) {
    return Status::internal("codegen: the object file is damaged: " + llvm::toString(std::move(error)));
  }

  std::string name_of(const File::Elf_Shdr& section) {
    auto name = file_.getSectionName(section);
    if (name) return name->str();
    llvm::consumeError(name.takeError());
    return "?";
  }

  Status place(size_t index, bool executable) {
    const auto& section = sections_[index];
    if ((section.sh_flags & elf::SHF_ALLOC) == 0 || section.sh_size == 0) return {};
    const std::string name = name_of(section);
    if (section.sh_type != elf::SHT_PROGBITS || (section.sh_flags & (elf::SHF_WRITE | elf::SHF_TLS)) != 0 ||
        section.sh_addralign > kMaxAlignment) {
      return Status::internal("codegen: the object has a section '" + name + "' that is neither code nor constants");
    }
    if (((section.sh_flags & elf::SHF_EXECINSTR) != 0) != executable) return {};
    auto contents = file_.getSectionContents(section);
    if (!contents) return failed(contents.takeError());
    auto& bytes = code_->bytes;
    const uint64_t alignment = std::max<uint64_t>(section.sh_addralign, 1);
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    places_[index] = bytes.size();
    bytes.insert(bytes.end(), contents->begin(), contents->end());
    return {};
  }

  // Finds a symbol's offset in the blob.
  Status address(const File::Elf_Shdr& table, uint32_t number, uint64_t* result) {
    auto symbol = file_.getSymbol(&table, number);
    if (!symbol) return failed(symbol.takeError());
    const auto found = places_.find((*symbol)->st_shndx);
    if (found == places_.end()) {
      std::string name = "?";
      auto strings = file_.getStringTableForSymtab(table);
      if (!strings) return failed(strings.takeError());
      if (auto text = (*symbol)->getName(*strings)) {
        name = text->str();
      } else {
        llvm::consumeError(text.takeError());
      }
      return Status::internal("codegen: the code uses '" + name + "', which is not in it");
    }
    *result = found->second + (*symbol)->st_value;
    return {};
  }

  Status relocate(const File::Elf_Shdr& section) {
    auto relocations = file_.relas(section);
    if (!relocations) return failed(relocations.takeError());
    auto table = file_.getSection(section.sh_link);
    if (!table) return failed(table.takeError());
    const uint64_t base = places_.at(section.sh_info);
    for (const auto& relocation : *relocations) {
      uint64_t symbol = 0;
      if (Status status = address(**table, relocation.getSymbol(false), &symbol); !status) return status;
      const uint32_t type = relocation.getType(false);
      const uint64_t at = base + relocation.r_offset;
      if (at + 4 > code_->bytes.size()) return Status::internal("codegen: a relocation lies outside of its section");
      const auto distance = static_cast<int64_t>(symbol) + relocation.r_addend - static_cast<int64_t>(at);
      if (!write_distance(type, distance, code_->bytes.data() + at)) {
        return Status::internal("codegen: the object has a relocation of type " +
                                file_.getRelocationTypeName(type).str() + " over " + std::to_string(distance) +
                                " bytes, which is not supported");
      }
    }
    return {};
  }

  // Changes the instruction or number at `place`. Returns false if it cannot express this.
  bool write_distance(uint32_t type, int64_t distance, uint8_t* place) {
    using llvm::support::endian::read32le, llvm::support::endian::write32le;
    const auto bits = static_cast<uint32_t>(distance);
    if (file_.getHeader().e_machine == elf::EM_X86_64) {
      if (type != elf::R_X86_64_PC32 && type != elf::R_X86_64_PLT32) return false;
      write32le(place, bits);
      return true;
    }
    if (file_.getHeader().e_machine != elf::EM_AARCH64) return false;
    switch (type) {
      case elf::R_AARCH64_PREL32:
        if (!llvm::isInt<32>(distance)) return false;
        write32le(place, bits);
        return true;
      case elf::R_AARCH64_ADR_PREL_LO21:  // adr
        if (!llvm::isInt<21>(distance)) return false;
        write32le(place, (read32le(place) & 0x9F00001F) | (bits & 3) << 29 | (bits >> 2 & 0x7FFFF) << 5);
        return true;
      case elf::R_AARCH64_LD_PREL_LO19:  // ldr
        if (!llvm::isInt<21>(distance) || (distance & 3) != 0) return false;
        write32le(place, (read32le(place) & 0xFF00001F) | (bits >> 2 & 0x7FFFF) << 5);
        return true;
      default:
        return false;
    }
  }

  Status find_functions() {
    std::optional<uint64_t> rows, finish;
    for (const auto& section : sections_) {
      if (section.sh_type != elf::SHT_SYMTAB) continue;
      auto strings = file_.getStringTableForSymtab(section);
      if (!strings) return failed(strings.takeError());
      auto symbols = file_.symbols(&section);
      if (!symbols) return failed(symbols.takeError());
      for (const auto& symbol : *symbols) {
        const auto found = places_.find(symbol.st_shndx);
        auto name = symbol.getName(*strings);
        if (!name) return failed(name.takeError());
        if (symbol.getType() != elf::STT_FUNC || found == places_.end()) continue;
        if (*name == kRowsName) rows = found->second + symbol.st_value;
        if (*name == kFinishName) finish = found->second + symbol.st_value;
      }
    }
    if (!rows) return Status::internal("codegen: the object has no function '" + std::string(kRowsName) + "'");
    code_->rows = static_cast<uint32_t>(*rows);
    code_->finish = static_cast<uint32_t>(finish.value_or(*rows));
    return {};
  }

  File file_;
  Code* code_;
  llvm::ArrayRef<File::Elf_Shdr> sections_;
  std::map<uint64_t, uint64_t> places_;  // by section number: the section's offset in the blob
};

}  // namespace

Status link_object(llvm::MemoryBufferRef object, Code* code) {
  auto file = File::create(object.getBuffer());
  if (!file) return Status::internal("codegen: this is not an ELF object: " + llvm::toString(file.takeError()));
  return Linker(std::move(*file), code).run();
}

}  // namespace torch_remote::codegen::cpu
