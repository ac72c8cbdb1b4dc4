"""Every setting of the broker and of topics, and their effective values.

``Settings.from_sources(files, pairs, profile)`` reads and checks; ``settings[NUM_IO_THREADS]``
reads a value.  Topic settings are in ``topics``, because some have the same names as broker
settings.  Corresponds to Kafka's ``KafkaConfig``.
"""

from __future__ import annotations

from minibroker.config import topics as topics
from minibroker.config.access_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.activity_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.admin_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.cleaner_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.connection_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.definitions import *  # noqa: F403 - the setting constants
from minibroker.config.fetch_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.group_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.ineffective_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.journal_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.listeners import Listener as Listener
from minibroker.config.listeners import advertised_endpoints as advertised_endpoints
from minibroker.config.persona_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.quota_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.sasl_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.security_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.setting import BROKER_SETTINGS as BROKER_SETTINGS
from minibroker.config.setting import TOPIC_SETTINGS as TOPIC_SETTINGS
from minibroker.config.setting import Scope as Scope
from minibroker.config.setting import Setting as Setting
from minibroker.config.settings import ConfigError as ConfigError
from minibroker.config.settings import SettingEntry as SettingEntry
from minibroker.config.settings import Settings as Settings
from minibroker.config.settings import read_pairs as read_pairs
from minibroker.config.settings import read_properties as read_properties
from minibroker.config.transaction_definitions import *  # noqa: F403 - the setting constants
from minibroker.config.types import ConnectString as ConnectString
from minibroker.config.types import HostPort as HostPort
from minibroker.config.zookeeper_definitions import *  # noqa: F403 - the setting constants
