# The functions of nixpkgs' lib that the module uses, with the meaning that its manual
# gives them.
let
  inherit (builtins)
    genList
    isList
    isString
    map
    stringLength
    substring
    ;

  basics = rec {
    inherit (builtins)
      all
      any
      attrNames
      attrValues
      concatLists
      concatMap
      concatStringsSep
      elem
      elemAt
      filter
      foldl'
      groupBy
      head
      length
      listToAttrs
      mapAttrs
      tail
      toJSON
      ;
    id = value: value;
    last = list: elemAt list (length list - 1);
    range = first: last: if first > last then [ ] else genList (n: first + n) (last - first + 1);
    optional = condition: value: if condition then [ value ] else [ ];
    optionals = condition: list: if condition then list else [ ];
    optionalString = condition: text: if condition then text else "";
    optionalAttrs = condition: attrs: if condition then attrs else { };
    subtractLists = unwanted: filter (item: !builtins.elem item unwanted);
    findFirst =
      wanted: default: list:
      let
        found = filter wanted list;
      in
      if found == [ ] then default else head found;
    flatten = value: if isList value then concatLists (map flatten value) else [ value ];
    unique = foldl' (kept: item: if builtins.elem item kept then kept else kept ++ [ item ]) [ ];

    nameValuePair = name: value: { inherit name value; };
    genAttrs = names: valueOf: listToAttrs (map (name: nameValuePair name (valueOf name)) names);
    mapAttrsToList = f: attrs: map (name: f name attrs.${name}) (attrNames attrs);
    mapAttrs' = f: attrs: listToAttrs (mapAttrsToList f attrs);
    filterAttrs =
      wanted: attrs: removeAttrs attrs (filter (name: !wanted name attrs.${name}) (attrNames attrs));
    recursiveUpdate =
      under: over:
      under
      // mapAttrs (
        name: value:
        if under ? ${name} && builtins.isAttrs under.${name} && builtins.isAttrs value then
          recursiveUpdate under.${name} value
        else
          value
      ) over;

    concatMapStrings = f: list: concatStringsSep "" (map f list);
    concatMapStringsSep =
      separator: f: list:
      concatStringsSep separator (map f list);
    hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
    hasSuffix =
      suffix: text:
      stringLength text >= stringLength suffix
      && substring (stringLength text - stringLength suffix) (stringLength suffix) text == suffix;
    hasInfix = infix: text: length (splitString infix text) > 1;
    removeSuffix =
      suffix: text:
      if hasSuffix suffix text then substring 0 (stringLength text - stringLength suffix) text else text;
    removePrefix =
      prefix: text: if hasPrefix prefix text then substring (stringLength prefix) (-1) text else text;
    assertMsg = condition: message: if condition then true else throw message;
    replaceStrings = builtins.replaceStrings;
    splitString = separator: text: filter isString (builtins.split (escapeRegex separator) text);
    escapeRegex =
      builtins.replaceStrings
        [
          "."
          "+"
          "*"
          "?"
          "("
          ")"
          "["
          "{"
          "^"
          "$"
          "|"
          "\\"
        ]
        [
          "\\."
          "\\+"
          "\\*"
          "\\?"
          "\\("
          "\\)"
          "\\["
          "\\{"
          "\\^"
          "\\$"
          "\\|"
          "\\\\"
        ];
    escapeXML =
      builtins.replaceStrings
        [ ''"'' "'" "<" ">" "&" ]
        [
          "&quot;"
          "&apos;"
          "&lt;"
          "&gt;"
          "&amp;"
        ];
    escapeShellArg = value: "'${builtins.replaceStrings [ "'" ] [ "'\\''" ] (toString value)}'";
    escapeShellArgs = concatMapStringsSep " " escapeShellArg;
    toLower =
      let
        upper = filter (c: c != "" && isString c) (builtins.split "" "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        lower = filter (c: c != "" && isString c) (builtins.split "" "abcdefghijklmnopqrstuvwxyz");
      in
      builtins.replaceStrings upper lower;
    toInt =
      text:
      let
        digits = builtins.match "0*([0-9]+)" text;
      in
      builtins.fromJSON (head digits);
    importTOML = path: builtins.fromTOML (builtins.readFile path);
    getExe = package: "${package}/bin/${package.meta.mainProgram}";
    licenses.asl20.spdxId = "Apache-2.0";
    fileset = {
      unions = paths: paths;
      toSource = { root, ... }: root;
    };
  };
in
basics // import ./modules.nix basics
