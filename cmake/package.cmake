# Installs the package files that find_package(sinpe CONFIG) reads.
include(CMakePackageConfigHelpers)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/sinpe)
configure_package_config_file(cmake/sinpeConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/sinpeConfig.cmake
                              INSTALL_DESTINATION ${package_directory})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/sinpeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sinpeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/sinpeConfigVersion.cmake
        DESTINATION ${package_directory})
install(EXPORT sinpe NAMESPACE sinpe:: FILE sinpeTargets.cmake DESTINATION ${package_directory})
