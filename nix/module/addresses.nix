# IPv4 addresses as numbers.
{ lib }:
rec {
  toNumber =
    address: lib.foldl' (sum: part: sum * 256 + lib.toInt part) 0 (lib.splitString "." address);

  # How many addresses a prefix holds.
  size = prefixLength: lib.foldl' (size: _: size * 2) 1 (lib.range 1 (32 - prefixLength));

  # The bits of `address` beyond the prefix.
  hostBits = address: prefixLength: builtins.bitAnd (toNumber address) (size prefixLength - 1);

  networkOf = address: prefixLength: toNumber address - hostBits address prefixLength;
}
