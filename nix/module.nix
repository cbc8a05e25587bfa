# services.llama-router: renders config.json and presets.ini, checks them while the system is built, and runs the router.
#
# An option of a model that the router itself understands goes to config.json; every other one is a llama-server option
# and goes to the model's section of presets.ini. Later ones win:
# promptCache < presetGlobals < promptCache.ramMiBPerModel < what stands on the model.
self:
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.llama-router;
  inherit (lib)
    attrNames
    concatMapStringsSep
    concatStringsSep
    filterAttrs
    literalExpression
    mapAttrs
    mkEnableOption
    mkIf
    mkOption
    optional
    optionalAttrs
    recursiveUpdate
    types
    ;

  routerKeys = [
    "num_instance"
    "gpus"
    "aliases"
    "unlisted"
    "priority"
    "ttl"
    "persistent"
    "capacities"
    "evict_cost"
    "env"
    "filters"
    "name"
    "description"
    "metadata"
    "reasoning_effort"
    "cost"
  ];
  forRouter = filterAttrs (key: _: builtins.elem key routerKeys);
  forServer = filterAttrs (key: _: !builtins.elem key routerKeys);

  unknownModels = builtins.filter (name: !(cfg.models ? ${name})) (attrNames cfg.promptCache.ramMiBPerModel);

  globals = {
    cache-ram = cfg.promptCache.ramMiB;
    cache-prompt = cfg.promptCache.enable;
  }
  // optionalAttrs (cfg.promptCache.reuseChunk != 0) { cache-reuse = cfg.promptCache.reuseChunk; }
  // optionalAttrs (cfg.promptCache.checkpoints != null) { ctx-checkpoints = cfg.promptCache.checkpoints; }
  // optionalAttrs (cfg.promptCache.checkpointMinStep != null) {
    checkpoint-min-step = cfg.promptCache.checkpointMinStep;
  }
  // cfg.presetGlobals;

  section =
    name: model:
    optionalAttrs (cfg.promptCache.ramMiBPerModel ? ${name}) {
      cache-ram = cfg.promptCache.ramMiBPerModel.${name};
    }
    // forServer model;

  value =
    given:
    if builtins.isBool given then
      (if given then "true" else "false")
    else if builtins.isList given then
      concatMapStringsSep "," toString given
    else
      toString given;
  render =
    name: keys: "[${name}]\n" + concatStringsSep "" (map (key: "${key} = ${value keys.${key}}\n") (attrNames keys));

  presets =
    "version = 1\n\n"
    + concatStringsSep "\n" (
      [ (render "*" globals) ] ++ map (name: render name (section name cfg.models.${name})) (attrNames cfg.models)
    );

  # Beside another engine the cap is a second rule wherever it is written, so the default is not.
  hasCap = cfg.maxModelsPerGpu != 1 || (cfg.routing.router.use or "residency") == "residency";

  configuration = {
    API-port = cfg.port;
    ROUTER = {
      HOST = cfg.host;
      EVICTION_POLICY = cfg.evictionPolicy;
      QUEUE_FORCE_LOAD_TIMEOUT = cfg.queueForceLoadTimeout;
      QUEUE_HEAD_GRACE = cfg.queueHeadGrace;
    }
    // optionalAttrs hasCap { MAX_MODELS_PER_GPU = cfg.maxModelsPerGpu; }
    // optionalAttrs (cfg.gpuCount != null) { NUM_GPUS = cfg.gpuCount; }
    // cfg.routerSettings;
    LLM = mapAttrs (_: forRouter) cfg.models;
  }
  // optionalAttrs (cfg.llmBasePort != null) { LLM-base-port = cfg.llmBasePort; }
  // optionalAttrs (cfg.keys != { }) { inherit (cfg) keys; }
  // optionalAttrs (cfg.routing != { }) { inherit (cfg) routing; };

  configFile = pkgs.writeText "llama-router-config.json" (
    builtins.toJSON (recursiveUpdate configuration cfg.settings)
  );
  presetsFile = pkgs.writeText "llama-router-presets.ini" presets;
  preset = types.oneOf [
    types.bool
    types.int
    types.float
    types.str
    types.path
    (types.listOf (types.either types.str types.number))
  ];
  jsonValue = types.attrsOf types.anything;
in
{
  options.services.llama-router = {
    enable = mkEnableOption "llama-router, one OpenAI-compatible endpoint in front of llama-server processes";

    package = mkOption {
      type = types.package;
      default = self.packages.${pkgs.system}.default;
      defaultText = literalExpression "llama-router of this flake";
      description = "The router.";
    };

    llamaCpp = mkOption {
      type = types.package;
      default = pkgs.llama-cpp;
      defaultText = literalExpression "pkgs.llama-cpp";
      example = literalExpression "pkgs.llama-cpp.override { cudaSupport = true; }";
      description = "Where llama-server comes from.";
    };

    host = mkOption {
      type = types.str;
      default = "127.0.0.1";
      description = "Address to listen on. Others than this machine's own deserve `keys`.";
    };

    port = mkOption {
      type = types.port;
      default = 11434;
      description = "Port to listen on.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Open the port in the firewall.";
    };

    llmBasePort = mkOption {
      type = types.nullOr types.port;
      default = null;
      description = "Accepted for older configurations; llama-servers listen on UNIX sockets.";
    };

    user = mkOption {
      type = types.str;
      default = "llama-router";
      description = "User that the router runs as; made if it has this name.";
    };

    group = mkOption {
      type = types.str;
      default = "llama-router";
      description = "Its group; made if it has this name.";
    };

    extraGroups = mkOption {
      type = types.listOf types.str;
      default = [
        "video"
        "render"
      ];
      description = "Groups that may use the GPUs.";
    };

    modelDirs = mkOption {
      type = types.listOf types.path;
      default = [ ];
      example = [ "/home/me/models" ];
      description = "Directories with weights that the unit must see although they are in somebody's home.";
    };

    maxModelsPerGpu = mkOption {
      type = types.ints.positive;
      default = 1;
      description = "Models that may be resident on one GPU. Under another engine of `routing` 1 means no cap.";
    };

    evictionPolicy = mkOption {
      type = types.enum [
        "lru"
        "fifo"
        "worth"
      ];
      default = "lru";
      description = "Who leaves: the longest unused, the longest loaded, or what is worth least.";
    };

    queueForceLoadTimeout = mkOption {
      type = types.ints.unsigned;
      default = 300;
      description = "Seconds after which a waiting request goes before all others; 0 for never.";
    };

    queueHeadGrace = mkOption {
      type = types.ints.unsigned;
      default = 0;
      description = "Seconds for which later requests for loaded models may overtake one whose model is not.";
    };

    gpuCount = mkOption {
      type = types.nullOr types.ints.unsigned;
      default = null;
      description = "Number of GPUs; null: what NVML sees.";
    };

    promptCache = {
      enable = mkOption {
        type = types.bool;
        default = true;
        description = "Reuse the prompt that a slot holds.";
      };
      ramMiB = mkOption {
        type = types.ints.unsigned;
        default = 8192;
        description = "Most MiB of host memory for conversations that are in no slot, per llama-server.";
      };
      ramMiBPerModel = mkOption {
        type = types.attrsOf types.ints.unsigned;
        default = { };
        example = {
          "a-heavy-model" = 32768;
        };
        description = "The same for single models.";
      };
      reuseChunk = mkOption {
        type = types.ints.unsigned;
        default = 0;
        description = "Smallest chunk that may be moved within the cache; 0: none. Many models do not support it.";
      };
      checkpoints = mkOption {
        type = types.nullOr types.ints.unsigned;
        default = null;
        description = "Context checkpoints per slot; null: as llama-server has it.";
      };
      checkpointMinStep = mkOption {
        type = types.nullOr types.ints.unsigned;
        default = null;
        description = "Fewest tokens between two of them; null: as llama-server has it.";
      };
    };

    presetGlobals = mkOption {
      type = types.attrsOf preset;
      default = { };
      example = {
        ngl = 99;
        fa = true;
      };
      description = "llama-server options for every model.";
    };

    models = mkOption {
      type = types.attrsOf jsonValue;
      default = { };
      example = {
        "qwen3-4b" = {
          model = "/srv/models/qwen3-4b-q8_0.gguf";
          gpus = [ 0 ];
          c = 65536;
          parallel = 4;
        };
      };
      description = "Models by name: keys of the router (gpus, num_instance, cost, ...) and options of llama-server.";
    };

    keys = mkOption {
      type = jsonValue;
      default = { };
      example = {
        alice = "\${file./run/secrets/alice}";
      };
      description = "API keys by name. Write them as hashes or references: this file is readable by everybody.";
    };

    routing = mkOption {
      type = jsonValue;
      default = { };
      description = "Which models may be loaded together, and who is served first.";
    };

    routerSettings = mkOption {
      type = jsonValue;
      default = { };
      example = {
        GRACEFUL_KILL_TIMEOUT = 10;
      };
      description = "Any other key of ROUTER in config.json; wins over the options here.";
    };

    settings = mkOption {
      type = jsonValue;
      default = { };
      example = {
        promptCache.keepAcrossSwaps = true;
      };
      description = "What else config.json may hold (profiles, selectors, ...); wins over the options here.";
    };

    environmentFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      description = "File with NAME=value lines for secrets that `keys` refers to.";
    };
  };

  config = mkIf cfg.enable {
    assertions = [
      {
        assertion = unknownModels == [ ];
        message = "services.llama-router.promptCache.ramMiBPerModel names models that are not in services.llama-router.models: ${concatStringsSep ", " unknownModels}";
      }
    ];

    users.users = optionalAttrs (cfg.user == "llama-router") {
      llama-router = {
        isSystemUser = true;
        inherit (cfg) group extraGroups;
        home = "/var/lib/llama-router";
      };
    };
    users.groups = optionalAttrs (cfg.group == "llama-router") { llama-router = { }; };

    networking.firewall.allowedTCPPorts = optional cfg.openFirewall cfg.port;

    environment.etc."llama-router/config.json".source = configFile;
    environment.etc."llama-router/presets.ini".source = presetsFile;

    systemd.services.llama-router = {
      description = "llama-router: one OpenAI-compatible endpoint in front of llama-server";
      wantedBy = [ "multi-user.target" ];
      after = [ "network.target" ];
      # A reload keeps the streams of every model that did not change.
      reloadTriggers = [
        configFile
        presetsFile
      ];
      environment = {
        ROUTER_CONFIG_PATH = "/etc/llama-router/config.json";
        LLAMA_PRESETS_PATH = "/etc/llama-router/presets.ini";
        LLAMA_ROUTER_LLAMA_SERVER = "${cfg.llamaCpp}/bin/llama-server";
        LLAMA_ROUTER_STATE_DIR = "/var/lib/llama-router";
        RUN_DIR = "/run/llama-router";
        XDG_CACHE_HOME = "/var/cache/llama-router";
      };
      serviceConfig = {
        ExecStartPre = "${cfg.package}/bin/llama-router check";
        ExecStart = "${cfg.package}/bin/llama-router serve";
        ExecReload = "${pkgs.coreutils}/bin/kill -HUP $MAINPID";
        Restart = "on-failure";
        RestartSec = 5;
        TimeoutStopSec = 90;
        KillMode = "mixed";
        User = cfg.user;
        Group = cfg.group;
        SupplementaryGroups = cfg.extraGroups;
        StateDirectory = "llama-router";
        StateDirectoryMode = "0750";
        CacheDirectory = "llama-router";
        RuntimeDirectory = "llama-router";
        RuntimeDirectoryMode = "0700";
        UMask = "0077";
        LimitNOFILE = 65536;
        ProtectSystem = "strict";
        ProtectHome = if cfg.modelDirs == [ ] then "yes" else "tmpfs";
        BindReadOnlyPaths = cfg.modelDirs;
        PrivateTmp = true;
        NoNewPrivileges = true;
        CapabilityBoundingSet = "";
        RestrictAddressFamilies = [
          "AF_UNIX"
          "AF_INET"
          "AF_INET6"
          "AF_NETLINK"
        ];
        RestrictNamespaces = true;
        RestrictRealtime = true;
        RestrictSUIDSGID = true;
        LockPersonality = true;
        ProtectClock = true;
        ProtectControlGroups = true;
        ProtectHostname = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        SystemCallArchitectures = "native";
        DevicePolicy = "closed";
        DeviceAllow = [
          "char-nvidia rw"
          "char-nvidia-frontend rw"
          "char-nvidia-caps rw"
          "char-nvidia-uvm rw"
          "char-drm rw"
          "char-kfd rw"
        ];
      }
      // optionalAttrs (cfg.environmentFile != null) { EnvironmentFile = cfg.environmentFile; };
    };
  };
}
