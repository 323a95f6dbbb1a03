# The settings of blocks whose owners need torch know nothing of it, so that the front door can link them:
# tutti::speech_settings and tutti::trainer_settings serve these rooms themselves; tutti::schemas adds those of systems and the checker over all rooms.
file(GLOB_RECURSE speech_settings CONFIGURE_DEPENDS tutti/speech/*_settings.cpp)
tutti_join(speech_settings speech_settings ${speech_settings} tutti/speech/models/model_config.cpp
           tutti/speech/models/encoder_config.cpp tutti/speech/text/cleaners.cpp tutti/speech/text/utf8.cpp)
tutti_add_room(speech_settings COLD SOURCES ${speech_settings} PUBLIC tutti::config tutti::data)
file(GLOB_RECURSE trainer_settings CONFIGURE_DEPENDS tutti/trainer/*_settings.cpp)
tutti_join(trainer_settings trainer_settings ${trainer_settings})
tutti_add_room(trainer_settings COLD SOURCES ${trainer_settings} PUBLIC tutti::config)
file(GLOB_RECURSE systems_settings CONFIGURE_DEPENDS tutti/systems/*_settings.cpp)
tutti_join(systems_settings systems_settings ${systems_settings} tutti/systems/standard_checker.cpp
           tutti/systems/dataset_builder.cpp tutti/systems/input_files.cpp)
tutti_add_room(schemas COLD SOURCES ${systems_settings} PUBLIC tutti::speech_settings tutti::trainer_settings tutti::parallel)
