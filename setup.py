from setuptools import setup
setup(name='mmsoft', version='0.1.0', packages=['mmsoft'])
