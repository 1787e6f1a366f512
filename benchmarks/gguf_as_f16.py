"""Write a GGUF file again with its matrices in F16: gguf_as_f16.py SOURCE TARGET."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize


def main() -> None:
    source, target = (Path(name) for name in sys.argv[1:3])
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    scratch = target.with_suffix(".part")
    writer = GGUFWriter(scratch, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        else:
            writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.rename(target)


if __name__ == "__main__":
    main()
