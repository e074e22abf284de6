# The reference of services.proxyd's options, in Markdown: docs/nixos-options.md.
{ lib, options }:
let
  inherit (lib) concatMapStringsSep concatStringsSep mapAttrsToList;

  indented = lib.replaceStrings [ "\n" ] [ "\n  " ];

  # A name, quoted where Nix wants that.
  name = text: if builtins.match "[A-Za-z_][A-Za-z0-9_'-]*" text != null then text else ''"${text}"'';

  # A value as one would write it.
  written =
    value:
    if value._type or null == "literalExpression" then
      value.text
    else if builtins.isAttrs value && value == { } then
      "{ }"
    else if builtins.isAttrs value then
      "{\n  ${
        indented (
          concatStringsSep "\n" (mapAttrsToList (key: item: "${name key} = ${written item};") value)
        )
      }\n}"
    else if builtins.isList value then
      "[ ${concatMapStringsSep " " written value} ]"
    else if builtins.isString value && lib.hasInfix "\n" value then
      "''\n  ${indented value}''"
    else
      builtins.toJSON value;

  block =
    value:
    let
      text = written value;
    in
    if lib.hasInfix "\n" text then "\n\n```nix\n${text}\n```" else " `${text}`";

  default =
    option:
    let
      value = option.defaultText or option.default;
    in
    if value._type or null == "literalMD" then " ${value.text}" else block value;

  # Line breaks of the source are none of the text.
  paragraph = text: lib.removeSuffix "\n" text;

  entry =
    option:
    ''
      ### `${option.name}`

      ${paragraph option.description}

    ''
    + "Type: ${option.type}\n"
    + lib.optionalString (option ? default || option ? defaultText) "\nDefault:${default option}\n"
    + "\nExample:${block option.example}\n";
in
''
  # Options of services.proxyd

  Made from the module by `nix/tests/run bless`. [nixos.md](nixos.md) tells how they go
  together.

''
+ concatStringsSep "\n" (map entry (lib.optionAttrSetToDocList options))
