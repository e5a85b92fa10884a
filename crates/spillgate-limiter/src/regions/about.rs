//! What the servers of a region say about themselves in their store, and what of it must agree.

use std::fmt;

use spillgate_core::Regions;

/// What the servers of a region write into their own store, so that those of other regions can compare it with what they
/// know. Its text is `regions=3 format=1 secret=00000000000000ff region=eu`.
///
/// ```
/// use spillgate::regions::About;
///
/// let text = "regions=3 format=1 secret=00000000000000ff region=eu";
/// let about = About::parse(text).unwrap();
/// assert_eq!((about.regions, about.secret, about.region.as_str()), (3, 255, "eu"));
/// assert_eq!(about.to_string(), text);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The number of regions.
    pub regions: u8,
    /// The format of what regions tell each other.
    pub format: u32,
    /// A check value of the secret that keys are made with.
    pub secret: u64,
    /// The name of the region, without spaces.
    pub region: String,
}

impl About {
    /// The format of this version.
    pub const FORMAT: u32 = 1;

    /// Describes a region whose servers run this version.
    #[must_use]
    pub fn new(region: &str, regions: Regions, secret: u64) -> About {
        About { regions: regions.get(), format: About::FORMAT, secret, region: region.to_owned() }
    }

    /// Reads the text of another region, or returns `None` if it is none. Parts that a later version may add are skipped.
    #[must_use]
    pub fn parse(text: &str) -> Option<About> {
        let part = |name: &str| {
            let parts = text.split_ascii_whitespace().filter_map(|part| part.split_once('='));
            parts.clone().find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        Some(About {
            regions: part("regions")?.parse().ok()?,
            format: part("format")?.parse().ok()?,
            secret: u64::from_str_radix(part("secret")?, 16).ok()?,
            region: part("region")?.to_owned(),
        })
    }

    /// Compares the text of a region, which this region calls `name`, with this region. A text that cannot be read is
    /// another format.
    #[must_use]
    pub fn compared(&self, name: &str, text: Option<&str>) -> Differs {
        let Some(text) = text else { return Differs { nobody: true, ..Differs::default() } };
        let Some(other) = About::parse(text) else { return Differs { format: true, ..Differs::default() } };
        Differs {
            regions: other.regions != self.regions,
            format: other.format != self.format,
            secret: other.secret != self.secret,
            own_store: other.region == self.region,
            name: other.region != name && other.region != self.region,
            nobody: false,
        }
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { regions, format, secret, region } = self;
        write!(f, "regions={regions} format={format} secret={secret:016x} region={region}")
    }
}

/// What another region says otherwise than this region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Differs {
    /// It has another number of regions. Both go on, and the guaranteed shares add up to another rate.
    pub regions: bool,
    /// It has another format, so nothing is sent.
    pub format: bool,
    /// It has another secret, so nothing is sent: none of our keys means anything there.
    pub secret: bool,
    /// It has the name of this region, so the peer is the own store, and nothing is sent.
    pub own_store: bool,
    /// It has another name than this region gives it. Units are sent, but perhaps to a store that another region has.
    pub name: bool,
    /// No server of the region has said anything there: none has started yet, or it is the wrong store. Units are sent.
    pub nobody: bool,
}

impl Differs {
    /// Returns whether nothing is sent to the region.
    #[must_use]
    pub const fn stops(self) -> bool {
        self.format || self.secret || self.own_store
    }

    /// Returns each thing that has to agree, by its name in metrics, and whether it differs.
    #[must_use]
    pub const fn all(self) -> [(&'static str, bool); 6] {
        let Differs { regions, format, secret, own_store, name, nobody } = self;
        [
            ("regions", regions),
            ("format", format),
            ("secret", secret),
            ("own_store", own_store),
            ("name", name),
            ("nobody", nobody),
        ]
    }
}
