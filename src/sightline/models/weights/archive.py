"""The zip archives of `torch.save`, checked before torch reads them.

torch believes the directory at the end of an archive: one wrong offset in it and a tensor is read from the bytes of
another, without an error. Here the directory is compared with the headers in front of the entries, and the checksum of
every entry with its bytes.
"""

import mmap
import struct
import zipfile
import zlib
from pathlib import Path

from sightline.util.errors import FileError
from sightline.util.files import reason

LOCAL = struct.Struct("<4s5HL2L2H")  # signature, version, flags, method, time, date, crc, sizes, lengths
END, END64, LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
FLAG_LATER = 8  # checksum and sizes come after the data


def check_archive(path: Path) -> None:
    """Reject an archive that is damaged, or that is larger unpacked than packed: torch stores tensors uncompressed.

    Raises:
        FileError: names what is wrong.
    """
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries, start = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise FileError(f"{path}: damaged archive ({reason(error)}); download it again") from error
    claimed = sum(entry.file_size for entry in entries)
    if claimed > size:
        raise FileError(f"{path}: {size} bytes claim to unpack to {claimed}; rejected as a zip bomb")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise FileError(f"{path}: a compressed archive, which torch does not write; unpack and save it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        wrong = _wrong_end(data, start, len(entries)) or _wrong_entries(data, start, entries)
    if wrong:
        raise FileError(f"{path}: damaged archive ({wrong}); download it again")


def _wrong_end(data: mmap.mmap, start: int, count: int) -> str:
    """What contradicts the directory in the records at the end; "" if nothing does."""
    at = len(data) - END.size
    signature, *disks, here, total, length, offset, comment = END.unpack_from(data, at)
    if signature != b"PK\5\6" or comment or any(disks):
        return "its last record"
    end = at
    if at >= LOCATOR.size + END64.size and data[at - LOCATOR.size :][:4] == b"PK\6\7":
        end = at - LOCATOR.size - END64.size
        _, disk, where, disks_total = LOCATOR.unpack_from(data, at - LOCATOR.size)
        signature, rest, _, _, *disks, here64, total64, length64, offset64 = END64.unpack_from(data, end)
        if (signature, rest, where, disk, any(disks)) != (b"PK\6\6", END64.size - 12, end, 0, False) or disks_total > 1:
            return "its last record"
        if (here64, total64, length64, offset64) != (count, count, end - start, start):
            return "the place of its directory"
    expected = (min(count, 0xFFFF), min(count, 0xFFFF), min(end - start, 0xFFFFFFFF), min(start, 0xFFFFFFFF))
    return "" if (here, total, length, offset) == expected else "the place of its directory"


def _wrong_entries(data: mmap.mmap, start: int, entries: list[zipfile.ZipInfo]) -> str:
    """The first entry whose directory, header and bytes contradict each other; "" if none does."""
    made = {(e.create_system, e.create_version, e.internal_attr, e.external_attr) for e in entries}
    if len(made) > 1 or any(entry.volume for entry in entries):
        return "attributes in its directory"
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if not end <= entry.header_offset <= start - LOCAL.size:
            return f"the place of {entry.filename!r}"
        found = LOCAL.unpack_from(data, entry.header_offset)
        signature, version, flags, method, time, date, crc, packed, unpacked, name, extra = found
        first = entry.header_offset + LOCAL.size
        begin = first + name + extra
        end = begin + entry.file_size
        written = data[first : first + name].decode("utf-8" if flags & 0x800 else "cp437", "replace")
        needed = entry.extract_version | entry.reserved << 8
        same = (b"PK\3\4", needed, entry.flag_bits, entry.compress_type, entry.orig_filename)
        if (signature, version, flags, method, written) != same or (time, date) != _dos_time(entry.date_time):
            return f"the header of {entry.filename!r}"
        sizes = {packed, unpacked, entry.compress_size, entry.file_size} - {0xFFFFFFFF}
        if end > start or (not flags & FLAG_LATER and (crc != entry.CRC or len(sizes) > 1)):
            return f"the size of {entry.filename!r}"
        if entry.compress_size != entry.file_size:
            return f"the size of {entry.filename!r}"
        with memoryview(data) as view, view[begin:end] as content:  # a checksum of 0: saved without one
            if entry.CRC and zlib.crc32(content) != entry.CRC:
                return f"the bytes of {entry.filename!r}"
    return ""


def _dos_time(moment: tuple[int, int, int, int, int, int]) -> tuple[int, int]:
    year, month, day, hour, minute, second = moment
    return hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
